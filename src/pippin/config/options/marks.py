"""What an option has besides its type and default."""

from typing import Annotated, Any

from msgspec import Meta

from pippin.core.parameters import Parameter

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]


def about(help: str, *, hot: bool = False, flag: str | None = None, **bounds: float) -> Meta:
    """The help of an option, and the `bounds` of its value as `Meta` takes them.

    An option that is `hot` can change without a restart: on SIGHUP and with `PATCH /v1/settings`. `flag` is given where
    an option's flag differs from its name: the singular of a list, given once per item.
    """
    marks: dict[str, Any] = {"hot": hot} | ({} if flag is None else {"flag": flag})
    limits: dict[str, Any] = bounds
    return Meta(description=help, extra=marks, **limits)


def default_of(parameter: Parameter) -> Meta:
    """The help and the bounds of an option that sets a sampling parameter's default."""
    return about(f"Default: {parameter.help[0].lower()}{parameter.help[1:]}", hot=True, **parameter.bounds)
