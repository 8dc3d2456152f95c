"""The fields that the bodies of `/api/chat` and `/api/generate` share, and their meaning to the engine.

Fields and meanings are those of Ollama's API reference, https://docs.ollama.com/api.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.shared.engine_fields import (
    Name,
    SamplingFields,
    parse_duration,
    sampling_of,
    schema_format,
)
from pippin.api.dialects.shared.fields import BOOKKEEPING, Unused, called, invalid
from pippin.api.dialects.shared.openai import StopTexts, stops_of
from pippin.core.requests import GenerationRequest, JsonObject, OutputFormat, Thinking

LATEST: Final = ":latest"
"""The tag that Ollama's clients append to a name without one."""

RUNNER: Final = Meta(description="Accepted: the operator says how models run.")
Runner = Annotated[Any, RUNNER]


class OllamaOptions(SamplingFields, kw_only=True, omit_defaults=True):
    """`options` of a body: the sampling fields of all dialects, and Ollama's own options."""

    num_ctx: Annotated[
        Annotated[int, Meta(ge=1, le=2**40)] | None,
        Meta(description="Most tokens of prompt and answer together; the model's window at most."),
    ] = None
    num_predict: Annotated[
        Annotated[int, Meta(ge=-2, le=100_000_000)] | None,
        Meta(description="Most new tokens; -1, -2 and 0 set no limit."),
    ] = None
    stop: Annotated[str | StopTexts | None, Meta(description="Texts at which the answer ends.")] = None
    mirostat: Literal[0] | None = None
    tfs_z: Literal[1] | None = None
    mirostat_eta: Unused = None
    mirostat_tau: Unused = None
    num_keep: Unused = None
    penalize_newline: Unused = None
    num_batch: Runner = None
    num_gpu: Runner = None
    main_gpu: Runner = None
    num_thread: Runner = None
    low_vram: Runner = None
    f16_kv: Runner = None
    logits_all: Runner = None
    vocab_only: Runner = None
    use_mmap: Runner = None
    use_mlock: Runner = None
    numa: Runner = None
    embedding_only: Runner = None


class OllamaFields(Struct, kw_only=True, omit_defaults=True):
    """The fields of both bodies."""

    model: Annotated[Name, Meta(description="Name of a model, with or without `:latest`.")]
    stream: Annotated[bool | None, Meta(description="Lines of JSON, or one object; true if not set.")] = None
    format: Annotated[
        Literal["", "json"] | dict[str, Any] | None, Meta(description='"json", or a JSON schema to follow.')
    ] = None
    options: Annotated[OllamaOptions | None, Meta(description="Sampling, limits and stops.")] = None
    think: Annotated[
        bool | Literal["low", "medium", "high", "max"] | None,
        Meta(description="Whether, or how hard, the model reasons first."),
    ] = None
    keep_alive: Annotated[
        str | float | None,
        Meta(
            description="How long the model stays loaded, if an administrator asks: seconds, or `5m`; -1 for ever."
        ),
    ] = None
    truncate: Annotated[
        bool | None,
        Meta(description="False refuses a conversation that is too long; else its oldest turns go."),
    ] = None
    logprobs: Annotated[bool | None, Meta(description="Report the log probability of each token.")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None, Meta(description="And of this many others beside it.")
    ] = None


ACCEPTED: Final = {
    "shift": "An answer ends where the context window does.",
    "user": BOOKKEEPING,
}


def model_of(name: str) -> str:
    """The name of a model without the tag `:latest`."""
    return name.removesuffix(LATEST) or name


def with_fields(request: GenerationRequest, fields: OllamaFields) -> GenerationRequest:
    """The request with the shared fields applied. Raises `ServerError` naming the field."""
    options = fields.options or OllamaOptions()
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs", "needs `logprobs` to be true.")
    limit = options.num_predict
    return msgspec.structs.replace(
        request,
        sampling=sampling_of(options),
        stop=stops_of(options.stop, "options.stop"),
        max_tokens=limit if limit is not None and limit > 0 else None,
        context_limit=options.num_ctx,
        output_format=format_of(fields.format),
        thinking=thinking_of(fields.think),
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        overflow="error" if fields.truncate is False else "truncate",
        keep_alive=keep_alive_of(fields.keep_alive),
        names=called(max_tokens="options.num_predict", response_format="format"),
    )


def format_of(given: str | dict[str, Any] | None) -> OutputFormat | None:
    match given:
        case None | "":
            return None
        case dict():
            return schema_format(given, "format")
        case _:
            return JsonObject()


def thinking_of(given: bool | str | None) -> Thinking:
    if isinstance(given, str):
        return Thinking(enabled=True, effort=given)
    return Thinking(enabled=given)


def keep_alive_of(given: str | float | None) -> float | None:
    """Seconds, from one of Ollama's durations or a number. Raises `ServerError`."""
    if not isinstance(given, str) or not given:
        return None if isinstance(given, str) else given
    seconds = parse_duration(given)
    if seconds is None:
        raise invalid("keep_alive", 'must be a number of seconds or a duration such as "5m" or "1h30m".')
    return seconds
