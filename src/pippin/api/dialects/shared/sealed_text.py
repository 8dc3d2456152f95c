"""Carries text through a client as an opaque token, for contracts that want one (reasoning, summaries).

It is encoded, not encrypted: a local server hides nothing from its own client. The token lets a client that
keeps no text of its own hand it back in a later turn.
"""

import base64
import binascii
from typing import Final

_PREFIX: Final = "pippin1."


def seal(text: str) -> str:
    return _PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def unseal(token: str) -> str | None:
    """The text in a token of ours; None for anybody else's."""
    if not token.startswith(_PREFIX):
        return None
    payload = token.removeprefix(_PREFIX)
    try:
        return base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None
