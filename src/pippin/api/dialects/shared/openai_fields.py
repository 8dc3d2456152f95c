"""The fields that OpenAI's two completion APIs share, and the names they only accept or refuse."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from pippin.api.dialects.shared.engine_fields import EngineFields, Name, Tokens
from pippin.api.dialects.shared.fields import BOOKKEEPING, invalid, unsupported
from pippin.core.parameters import LONGEST_STOP, MOST_STOPS

MAX_ANSWERS = 1024
"""To one body. How many choices a request may have is the operator's to say, and the service's to check."""

Choices = Annotated[int, Meta(ge=1, le=MAX_ANSWERS)]

StopTexts = Annotated[tuple[str, ...], Meta(max_length=MOST_STOPS)]

_CACHE = "A hint; the prefix cache keeps every prompt."
_ROUTING = "For services that pass requests on to others; there is nobody to pass it on to."

ACCEPTED: Final = {
    "user": BOOKKEEPING,
    "metadata": BOOKKEEPING,
    "store": "Bookkeeping: there is no address that would list stored answers.",
    "service_tier": "There is one tier.",
    "safety_identifier": BOOKKEEPING,
    "prompt_cache_key": _CACHE,
    "prompt_cache_retention": _CACHE,
    "prompt_cache_options": _CACHE,
    "cache_control": _CACHE,
    "cache_prompt": _CACHE,
    "id_slot": _CACHE,
    "prediction": "A hint for speed; the operator sets up speculation.",
    "include": "Nothing that it can name is there to be included.",
    "betas": "Names of features; those that are here need no name.",
    "citations": "Answers cite nothing.",
    "provider": _ROUTING,
    "plugins": _ROUTING,
    "transforms": _ROUTING,
    "route": _ROUTING,
    "extra_body": "What a client forgot to unfold; its fields belong beside the others.",
    "extra_headers": "What a client forgot to unfold.",
    "request_id": "Bookkeeping; the header `x-request-id` names a request.",
    "spaces_between_special_tokens": "Markup tokens are never sent.",
}
"""Bookkeeping, and hints that change nothing in an answer: each with the reason why it can't."""

_DIFFUSION = "this option is for diffusion models, which Pippin does not run; leave it out."
_SPECPREFILL = "prompts are always computed in full; leave it out."
_SAMPLER = "leave it out, or use temperature, top_p, top_k, min_p, XTC or DRY."
_BEAM = "beam search is not offered; use `n` or `best_of` to choose among answers."
_DRAFT = "speculative decoding is set up by the operator."

REFUSED: Final = {
    "chat_template": "a template can only be set by the operator (`--chat-template-file`).",
    "role_mapping": "roles are rendered by the model's chat template.",
    "prompt_embeds": "embeddings can't be given instead of a prompt.",
    "logits_processors": "use `logit_bias`, `stop` or an output format instead.",
    "mm_processor_kwargs": "use `min_pixels`, `max_pixels` and `resize_shape` instead.",
    "use_beam_search": _BEAM,
    "length_penalty": _BEAM,
    "early_stopping": _BEAM,
    "bad_words": "use `logit_bias` to ban tokens.",
    "allowed_token_ids": "use `logit_bias` or `structured_outputs` instead.",
    "truncate_prompt_tokens": "use `truncation` to let old messages go.",
    "return_token_ids": "use `logprobs` to learn of the tokens of an answer.",
    "return_tokens_as_token_ids": "use `logprobs` to learn of the tokens of an answer.",
    "return_tokens": "use `logprobs` to learn of the tokens of an answer.",
    "kv_transfer_params": "caches are not moved between servers.",
    "vllm_xargs": "this is an option of vLLM's own plugins.",
    "thinking_forced_open": "use `enable_thinking` instead.",
    "p_less": _SAMPLER,
    "mirostat": _SAMPLER,
    "mirostat_tau": _SAMPLER,
    "mirostat_eta": _SAMPLER,
    "dynatemp_range": _SAMPLER,
    "dynatemp_exponent": _SAMPLER,
    "samplers": _SAMPLER,
    "tfs_z": _SAMPLER,
    "top_a": _SAMPLER,
    "xtc_special_tokens": "XTC leaves special tokens alone.",
    "n_probs": "use `logprobs` and `top_logprobs`.",
    "post_sampling_probs": "use `logprobs`.",
    "n_predict": "use `max_tokens`.",
    "t_max_predict_ms": "use `timeout`.",
    "lora": "use `adapter_path`.",
    "draft_model": _DRAFT,
    "num_draft_tokens": _DRAFT,
    "mllm_draft": _DRAFT,
    "specprefill": _SPECPREFILL,
    "specprefill_keep_pct": _SPECPREFILL,
    "specprefill_backbone_pct": _SPECPREFILL,
    "max_denoising_steps": _DIFFUSION,
    "block_length": _DIFFUSION,
    "num_to_transfer": _DIFFUSION,
    "max_transfer_per_step": _DIFFUSION,
    "editing_threshold": _DIFFUSION,
    "max_post_steps": _DIFFUSION,
    "stability_steps": _DIFFUSION,
    "diffusion_full_canvas": _DIFFUSION,
    "diffusion_min_canvas_length": _DIFFUSION,
    "diffusion_max_canvas_length": _DIFFUSION,
    "diffusion_sampler": _DIFFUSION,
    "threshold": _DIFFUSION,
    "min_threshold": _DIFFUSION,
}

NO_PROGRESS: Final = (
    "streams of Chat Completions and Completions have it; GET /v1/status tells how far each prompt is."
)
"""Why `return_progress` is refused by the dialects whose streams have no place for it."""


class StreamOptions(Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[bool | None, Meta(description="Accepted: no chunk is ever padded.")] = None


class OpenAIFields(EngineFields, kw_only=True, omit_defaults=True):
    model: Annotated[
        Name, Meta(description="Id or alias of a model; `default`, or none, is the one that is served.")
    ] = "default"
    stream: Annotated[bool | None, Meta(description="Send the answer as server-sent events.")] = None
    stream_options: Annotated[StreamOptions | None, Meta(description="What a stream reports.")] = None
    return_progress: Annotated[
        bool | None,
        Meta(description="Of llama.cpp: a stream tells in `prompt_progress` how far the prompt is."),
    ] = None
    n: Annotated[Choices | None, Meta(description="Answers, computed beside one another.")] = None
    stop: Annotated[
        str | StopTexts | None, Meta(description="Texts at which the answer ends; they are left out.")
    ] = None
    max_tokens: Annotated[Tokens | None, Meta(description="Most new tokens.")] = None
    skip_special_tokens: Annotated[bool | None, Meta(description="Only true: markup never leaks.")] = None
    tool_argument_recovery: Annotated[
        str | None, Meta(description='Only "none": arguments are never rewritten.')
    ] = None


def stops_of(given: str | tuple[str, ...] | None, param: str = "stop") -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else given or ()
    if len(stops) > MOST_STOPS:
        raise invalid(param, f"must not hold more than {MOST_STOPS} texts.")
    for stop in stops:
        if not 0 < len(stop) <= LONGEST_STOP:
            raise invalid(param, f"must hold texts of 1 to {LONGEST_STOP} characters.")
    return stops


def check_values(fields: OpenAIFields) -> None:
    """Fields of which only one value can be honoured."""
    if fields.skip_special_tokens is False:
        raise unsupported("skip_special_tokens", "markup tokens are read by the server and never sent.")
    if fields.tool_argument_recovery not in (None, "none"):
        raise unsupported("tool_argument_recovery", 'only "none"; a malformed call is sent as text.')


class StreamShape(Struct, frozen=True, kw_only=True):
    """How a stream of chunks is to look."""

    usage: bool = False  # a chunk of its own at the end
    continuous_usage: bool = False  # figures in every chunk
    progress: bool = False  # chunks that tell how far the prompt is


def stream_shape_of(fields: OpenAIFields) -> StreamShape:
    options = fields.stream_options or StreamOptions()
    continuous = bool(options.continuous_usage_stats)
    return StreamShape(
        usage=bool(options.include_usage) or continuous,
        continuous_usage=continuous,
        progress=bool(fields.return_progress),
    )
