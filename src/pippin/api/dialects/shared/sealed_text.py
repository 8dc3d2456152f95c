"""Passes text through a client as an opaque token, for contracts that require one (reasoning, summaries).

The text is encoded, not encrypted: a local server hides nothing from its own client. With the token, a client that
does not keep the text can send it back in a later turn.
"""

import base64
import binascii
from typing import Final

_PREFIX: Final = "pippin1."


def seal(text: str) -> str:
    return _PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def unseal(token: str) -> str | None:
    """The text in a token made by `seal`; None for any other token."""
    if not token.startswith(_PREFIX):
        return None
    payload = token.removeprefix(_PREFIX)
    try:
        return base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return None
