"""Short-lived keys for clients that can't keep a secret, such as browsers; they open only Realtime connections.

A secret has the rights and the limits of the key that asked for it, and ends with that key. Secrets are kept in memory,
and none outlives the server.
"""

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from pippin.api.access.keys import Key
from pippin.core.errors import ServerError

PREFIX: Final = "ek_"
MOST_SECONDS: Final = 7200
MOST_SECRETS: Final = 10_000
MOST_BYTES: Final = 16 << 20
"""Bytes of the sessions of all secrets."""
SHARE: Final = 8
"""One caller may hold one eighth of the secrets and of their bytes."""


class ClientSecret(Struct, frozen=True, kw_only=True):
    """What is stored of a secret: never its text."""

    account: str  # of the caller who asked for it
    key: bytes | None  # the digest of the key that asked for it; None where there are no keys
    expires_at: int  # seconds since the epoch
    session: bytes  # the settings of its connections, as JSON


class ClientSecrets:
    """The secrets that have not expired."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._secrets: dict[bytes, ClientSecret] = {}

    def make(self, account: str, key: Key | None, session: bytes, seconds: int) -> tuple[str, int]:
        """A new secret, and when it expires. Raises `ServerError` if there are too many."""
        self._secrets = {digest: each for digest, each in self._secrets.items() if self._holds(each)}
        self._check_room(account, len(session))
        text = PREFIX + secrets.token_hex(24)
        expires_at = int(self._clock()) + seconds
        self._secrets[_digest(text.encode())] = ClientSecret(
            account=account,
            key=None if key is None else key.digest,
            expires_at=expires_at,
            session=session,
        )
        return text, expires_at

    def find(self, shown: bytes) -> ClientSecret | None:
        """The secret that was shown, if it exists and has not expired."""
        if not shown.startswith(PREFIX.encode()):
            return None
        # Looked up by digest, so that the time it takes reveals nothing of the text.
        found = self._secrets.get(_digest(shown))
        return found if found is not None and self._holds(found) else None

    def _holds(self, secret: ClientSecret) -> bool:
        """Whether a secret is valid; one that would last too long, since the clock was set back, is not."""
        now = self._clock()
        return now < secret.expires_at <= now + MOST_SECONDS

    def _check_room(self, account: str, size: int) -> None:
        own = [each for each in self._secrets.values() if each.account == account]
        held = sum(len(each.session) for each in self._secrets.values())
        if (
            len(own) >= MOST_SECRETS // SHARE
            or len(self._secrets) >= MOST_SECRETS
            or sum(len(each.session) for each in own) + size > MOST_BYTES // SHARE
            or held + size > MOST_BYTES
        ):
            raise ServerError(
                "overloaded",
                "There are too many client secrets that have not expired; make them shorter-lived, or their sessions "
                "smaller.",
            )


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
