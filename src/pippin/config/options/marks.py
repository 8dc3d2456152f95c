"""The marks that an option may carry beside its type and help."""

from typing import Any, Final

HOT: Final[dict[str, Any]] = {"hot": True}
"""The option changes without a restart: on SIGHUP and by `PATCH /v1/settings`."""


def flag(name: str, *, hot: bool = False) -> dict[str, Any]:
    """The option's flag is not its own name: the singular of a list, which is given once per item."""
    return {"flag": name, "hot": hot}
