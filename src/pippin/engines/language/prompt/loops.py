"""What of requests and options the loops of mlx-vlm follow, and which models are diffusion language models."""

from dataclasses import dataclass
from typing import Any

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.parameters import PARAMETERS
from pippin.core.requests import AskedDiffusion, GenerationRequest, Sampling
from pippin.engines.language.vision.checkpoint import configuration_of, family_of, is_mlx_lms

EVERYWHERE = ("temperature", "seed")
NUCLEUS = ("top_p", "top_k")
"""Fields of `Sampling` that a loop may follow."""
WITHOUT = (
    *("adapter_path", "adapters", "draft_model_path", "mtp", "prompt_lookup"),
    *("kv_bits", "kv_key_bits", "kv_value_bits", "warm_prompts", "thinking_budget"),
)
"""Options that no loop follows."""


@dataclass(frozen=True)
class Loop:
    """What a loop of mlx-vlm follows."""

    settings: frozenset[str]  # fields of `AskedDiffusion`
    sampling: tuple[str, ...] = EVERYWHERE  # fields of `Sampling`
    model: str = "a diffusion language model, which writes many tokens at once"
    without: tuple[str, ...] = (*WITHOUT, "expert_cache_gb")  # options
    needs_media: bool = False  # the model computes no prompt of text alone

    def defaults(self, checkpoint: Sampling) -> Sampling:
        """The sampling of requests that name none: the checkpoint's, as far as the loop supports it. Without a
        temperature, decoding is greedy, as in mlx-vlm."""
        named = {name: getattr(checkpoint, name) for name in self.sampling}
        return Sampling(**named | {"temperature": named["temperature"] or 0.0})

    def ignored(self, options: ModelOptions) -> list[str]:
        """The operator's sampling defaults that the loop does not follow."""
        return [
            each.public_name
            for each in PARAMETERS
            if each.name not in self.sampling and each.acts(getattr(options, each.public_name, None))
        ]

    def refuse_options(self, options: ModelOptions) -> None:
        """Raises `ServerError("load_failed")` naming an option that the loop does not follow."""
        for name in self.without:
            if getattr(options, name):
                message = f"{name} cannot be used with {self.model}, in mlx-vlm's own loop. Start without it."
                raise ServerError("load_failed", message, name)

    def check(self, request: GenerationRequest, options: ModelOptions, *, has_media: bool) -> None:
        """Raises `ServerError` naming a field that the loop cannot honour.

        Values equal to the operator's or the profile's defaults pass: no client asked for them, and they were logged
        when the model was loaded.
        """
        if self.needs_media and not has_media:
            message = "This model reads pictures and takes no request without one: add one to a message of the user."
            raise ServerError("unsupported", message, "messages" if request.prompt is None else "prompt")
        for name, asked in _beyond(request):
            if asked:
                raise _refused(name, f"cannot be had of {self.model}")
        self._check_sampling(request.sampling, options)
        self._check_settings(request.diffusion)

    def _check_sampling(self, sampling: Sampling, options: ModelOptions) -> None:
        for each in PARAMETERS:
            value = getattr(sampling, each.name)
            default = value in (
                getattr(options, each.public_name, None),
                getattr(options.fallbacks, each.name),
            )
            if each.name not in self.sampling and each.acts(value) and not default:
                why = f"is not among what this model's loop follows ({_listed(self.sampling)})"
                raise _refused(each.public_name, why)

    def _check_settings(self, asked: AskedDiffusion) -> None:
        for name, value in msgspec.structs.asdict(asked).items():
            if value is not None and name not in self.settings:
                others = _listed(sorted(self.settings)) or "none of these settings"
                raise _refused(name, f"does nothing in this model's loop, which follows {others}")
        if asked.diffusion_sampler == "entropy-bound" and asked.threshold is not None:
            raise _refused("threshold", "does nothing with the sampler 'entropy-bound'")


AUTOREGRESSIVE = Loop(
    settings=frozenset(),
    sampling=(*EVERYWHERE, *NUCLEUS, "min_p"),
    model="a model that answers one request at a time",
    without=WITHOUT,
)
"""mlx-vlm's own `generate`."""


_MASKED = frozenset({"max_denoising_steps", "block_length", "threshold"})
_NEMOTRON = {
    "native": _MASKED,
    "fixed": _MASKED | {"num_to_transfer", "max_transfer_per_step"},
    "confidence_threshold_bound": _MASKED | {"min_threshold", "max_transfer_per_step"},
    "confidence_threshold_ref": _MASKED | {"max_transfer_per_step"},
    "cumulative_error": _MASKED | {"max_transfer_per_step"},
}
"""The settings of Nemotron's loop, by the sampler that the checkpoint names."""
_LLADA = _MASKED | {
    "max_transfer_per_step",
    "min_threshold",
    "editing_threshold",
    "max_post_steps",
    "stability_steps",
}
_CANVAS = _MASKED | {
    "diffusion_full_canvas",
    "diffusion_min_canvas_length",
    "diffusion_max_canvas_length",
    "diffusion_sampler",
}


def find_family(config: dict[str, Any]) -> Loop | None:
    """What a checkpoint with this config.json supports as a diffusion language model; None if it is none.

    It is one if its configuration has mlx-vlm's own signs (`is_diffusion_model`): a canvas, or a token that masks text
    that is not written yet. A checkpoint whose default mode is "ar" writes token by token and is none.
    """
    name = None if is_mlx_lms(config) else family_of(config)
    if name is None:
        return None
    settings = configuration_of(name, config)
    has_canvas = getattr(settings, "canvas_length", None) is not None
    masks = getattr(settings, "mask_token_id", None) is not None
    if not (has_canvas or masks) or getattr(settings, "default_generation_mode", None) == "ar":
        return None
    match name:
        case "diffusion_gemma":
            return Loop(_CANVAS)
        case "llada2_moe":
            return Loop(_LLADA, (*EVERYWHERE, *NUCLEUS))
        case "nemotron_labs_diffusion":
            sampler = str(getattr(settings, "default_diffusion_sampler", "native")).lower()
            return Loop(_NEMOTRON.get(sampler, _MASKED), (*EVERYWHERE, *NUCLEUS))
        case _:  # a family of a newer mlx-vlm
            return Loop(frozenset())


def refuse_diffusion(asked: AskedDiffusion) -> None:
    """Raises `ServerError` naming the first field that is set, for a model that is no diffusion language model."""
    for name, value in msgspec.structs.asdict(asked).items():
        if value is not None:
            raise _refused(name, "is for diffusion language models, and this one writes token by token")


def _beyond(request: GenerationRequest) -> tuple[tuple[str, bool], ...]:
    """Fields that need the engine's own choice of each token, and whether the request asks for them."""
    choice = request.tool_choice
    return (
        ("response_format", request.output_format is not None),
        ("tool_choice", choice.mode == "required"),
        ("tools", choice.mode != "none" and any(tool.strict for tool in request.tools)),
        ("logprobs", request.logprobs is not None),
        ("prompt_logprobs", request.prompt_logprobs is not None),
        ("logit_bias", bool(request.sampling.logit_bias)),
        ("min_tokens", request.min_tokens > 0),
        ("thinking_budget", request.thinking.budget is not None),
        ("adapter_path", request.adapter is not None),
    )


def _refused(name: str, why: str) -> ServerError:
    return ServerError("unsupported", f"'{name}' {why}: leave it out.", name)


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)
