"""Marks that an option may have besides its type and help."""

from typing import Any, Final

from msgspec import Meta

from pippin.core.parameters import Parameter

HOT: Final[dict[str, Any]] = {"hot": True}
"""The option can change without a restart: on SIGHUP and with `PATCH /v1/settings`."""


def flag(name: str, *, hot: bool = False) -> dict[str, Any]:
    """Marks an option whose flag differs from its name: the singular of a list, given once per item."""
    return {"flag": name, "hot": hot}


def default_of(parameter: Parameter) -> Meta:
    """The help of an option that sets a sampling parameter's default."""
    return Meta(description=f"Default: {parameter.help[0].lower()}{parameter.help[1:]}", extra=HOT)
