"""Defaults of sampling and limits, merged in one place: request > model > server > checkpoint > profile > Pippin."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.core.parameters import PARAMETERS
from pippin.core.requests import GenerationRequest, Sampling, Thinking

Origin = Literal["request", "model option", "server option", "checkpoint", "profile", "Pippin"]

PIPPIN: Final = Sampling(temperature=1.0)
"""What holds where nobody says anything: as the APIs document it. What is still unset is off."""

OPTION_OF: Final = {
    each.name: each.public_name
    for each in PARAMETERS
    if each.public_name in {field.name for field in msgspec.structs.fields(ModelOptions)}
}
"""The options by which operators set defaults of sampling, by the name of the parameter."""


@dataclass(frozen=True)
class Setting:
    """One value and who set it, as `pippin show` prints it."""

    name: str
    value: Any
    origin: Origin


def explain_sampling(
    request: Sampling, options: ModelOptions, server: ModelOptions, info: ModelInfo
) -> list[Setting]:
    """Every sampling parameter that someone set. `options` are the model's, complete; `server` its defaults."""
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


def merge_sampling(request: Sampling, options: ModelOptions, info: ModelInfo) -> Sampling:
    settings = explain_sampling(request, options, options, info)
    return Sampling(**{setting.name: setting.value for setting in settings})


def with_manner(request: GenerationRequest, options: ModelOptions) -> GenerationRequest:
    """The request with the model's defaults of thinking and overflow, where it sets none."""
    asked = request.thinking
    enabled = options.enable_thinking if asked.enabled is None else asked.enabled
    if enabled is None and asked.off_by_default:
        enabled = False
    thinking = Thinking(
        enabled=enabled,
        budget=options.thinking_budget if asked.budget is None else asked.budget,
        effort=asked.effort,
        start_marker=asked.start_marker or options.thinking_start_token,
        end_marker=asked.end_marker or options.thinking_end_token,
    )
    return msgspec.structs.replace(request, thinking=thinking, overflow=request.overflow or options.overflow)


def with_defaults(request: GenerationRequest, options: ModelOptions, info: ModelInfo) -> GenerationRequest:
    """The request as the engine gets it. Raises `ServerError` for more new tokens than are allowed."""
    most = options.max_request_tokens
    if most is not None and request.max_tokens is not None and request.max_tokens > most:
        message = f"max_tokens is {request.max_tokens}, but this server allows at most {most}."
        raise ServerError("invalid_request", message, "max_tokens")
    limits = [limit for limit in (options.max_tokens, most) if limit is not None]
    return msgspec.structs.replace(
        with_manner(request, options),
        sampling=merge_sampling(request.sampling, options, info),
        max_tokens=request.max_tokens if request.max_tokens is not None else min(limits, default=None),
    )
