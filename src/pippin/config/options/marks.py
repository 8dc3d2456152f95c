"""The marks that an option may carry beside its type and help."""

from typing import Any, Final

from msgspec import Meta

from pippin.core.parameters import Parameter

HOT: Final[dict[str, Any]] = {"hot": True}
"""The option changes without a restart: on SIGHUP and by `PATCH /v1/settings`."""


def flag(name: str, *, hot: bool = False) -> dict[str, Any]:
    """The option's flag is not its own name: the singular of a list, which is given once per item."""
    return {"flag": name, "hot": hot}


def default_of(parameter: Parameter) -> Meta:
    """The help of the option that says what a sampling parameter is where a request leaves it out."""
    return Meta(description=f"Default: {parameter.help[0].lower()}{parameter.help[1:]}", extra=HOT)
