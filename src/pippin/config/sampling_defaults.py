"""Who sets each sampling parameter of a request: the request, an option, the checkpoint, a profile, or Pippin."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo
from pippin.core.parameters import PARAMETERS
from pippin.core.requests import Sampling

Origin = Literal["request", "model option", "server option", "checkpoint", "profile", "Pippin"]

PIPPIN: Final = Sampling(temperature=1.0)
"""Defaults where nobody sets a value, as the APIs document them. What is still unset is off."""

OPTION_OF: Final = {
    each.name: each.public_name
    for each in PARAMETERS
    if each.public_name in {field.name for field in msgspec.structs.fields(ModelOptions)}
}
"""The options with which operators set sampling defaults, by parameter name."""


@dataclass(frozen=True)
class Setting:
    """A value and who set it, as `pippin show` prints it."""

    name: str
    value: Any
    origin: Origin


def explain_sampling(
    request: Sampling, options: ModelOptions, server: ModelOptions, info: ModelInfo
) -> list[Setting]:
    """Every sampling parameter that somebody set. `options` are the model's merged options, `server` the server's
    defaults."""
    settings = []
    for name in Sampling.__struct_fields__:
        option = getattr(options, OPTION_OF[name]) if name in OPTION_OF else None
        inherited = name in OPTION_OF and option == getattr(server, OPTION_OF[name])
        candidates: tuple[tuple[Any, Origin], ...] = (
            (getattr(request, name), "request"),
            (option, "server option" if inherited else "model option"),
            (getattr(info.sampling, name), "checkpoint"),
            (getattr(options.fallbacks, name), "profile"),
            (getattr(PIPPIN, name), "Pippin"),
        )
        for value, origin in candidates:
            if value is not None:
                settings.append(Setting(name, value, origin))
                break
    return settings
