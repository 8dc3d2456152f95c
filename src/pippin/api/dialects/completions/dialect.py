"""The dialect of OpenAI's Completions: raw prompts, several in one body."""

from typing import Annotated

from msgspec import Meta

from pippin.api.dialects.base import DecodeContext, Decoded, RunInfo
from pippin.api.dialects.completions.encode import (
    ID_PREFIX,
    CompletionsEncoder,
    CompletionsShape,
    TextCompletion,
)
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared import openai as shared
from pippin.api.dialects.shared.engine_fields import (
    ResponseFormat,
    format_field_of,
    output_format_of,
    sampling_of,
)
from pippin.api.dialects.shared.fields import Contract, called, invalid, unsupported
from pippin.api.dialects.shared.openai import OpenAIErrors
from pippin.core.requests import GenerationRequest

MAX_PROMPTS = 512
DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""

TokenId = Annotated[int, Meta(ge=0, lt=2**48)]
Prompt = str | tuple[TokenId, ...]


class CompletionRequest(shared.OpenAIFields, kw_only=True, omit_defaults=True):
    prompt: Annotated[
        str | tuple[str | TokenId | tuple[TokenId, ...], ...],
        Meta(
            description="Text, texts, token ids, or lists of token ids.",
            extra_json_schema={"minLength": 1, "minItems": 1},
        ),
    ]
    suffix: Annotated[
        str | None, Meta(description="Text after the gap, for models with fill-in-the-middle tokens.")
    ] = None
    echo: Annotated[bool | None, Meta(description="Begin the answer with the prompt.")] = None
    best_of: Annotated[shared.Choices | None, Meta(description="The same as `n`: all that run are sent.")] = (
        None
    )
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None,
        Meta(description="Report the log probability of each token, and of so many others."),
    ] = None
    response_format: Annotated[ResponseFormat | None, Meta(description="Form of the answer.")] = None


_OF_CONVERSATIONS = (
    "add_generation_prompt",
    "chat_template_kwargs",
    "context_management",
    "continue_final_message",
    "documents",
    "enable_thinking",
    "max_pixels",
    "min_pixels",
    "parse_tool_calls",
    "reasoning",
    "reasoning_effort",
    "reasoning_format",
    "resize_shape",
    "thinking_budget",
    "thinking_end_token",
    "thinking_start_token",
    "thinking_token_budget",
    "tool_parser",
    "video_fps",
    "video_max_frames",
)
REFUSED = shared.REFUSED | {
    **dict.fromkeys(_OF_CONVERSATIONS, "raw prompts go to the model as they are; use /v1/chat/completions."),
    "messages": "raw prompts have no messages; use /v1/chat/completions.",
    "tools": "raw prompts have no tools; use /v1/chat/completions.",
    "tool_choice": "raw prompts have no tools; use /v1/chat/completions.",
    "prompt_logprobs": "use `echo` and `logprobs`.",
    "add_special_tokens": "give token ids as the prompt to say exactly which tokens it has.",
}


class CompletionsDialect(OpenAIErrors):
    name = "completions"
    path = "/completions"
    id_prefix = ID_PREFIX
    answer = TextCompletion
    contract = Contract(CompletionRequest, shared.ACCEPTED, REFUSED)

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[CompletionsShape]:
        fields, ignored = self.contract.decode(body)
        prompts = prompts_of(fields.prompt)
        requests = tuple(
            _request_of(fields, prompt, "prompt" if len(prompts) == 1 else f"prompt[{place}]")
            for place, prompt in enumerate(prompts)
        )
        if len(requests) * requests[0].n > shared.MAX_ANSWERS:
            raise invalid("n", f"times the number of prompts must not be above {shared.MAX_ANSWERS}.")
        return Decoded(
            requests=requests,
            shape=CompletionsShape(
                stream=shared.stream_shape_of(fields),
                n=requests[0].n,
                requests=len(requests),
                logprobs=fields.logprobs is not None,
            ),
            stream=bool(fields.stream),
            ignored=ignored,
        )

    def encoder(self, decoded: Decoded[CompletionsShape], run: RunInfo) -> CompletionsEncoder:
        return CompletionsEncoder(decoded.shape, run)


def prompts_of(given: str | tuple[str | int | tuple[int, ...], ...]) -> tuple[Prompt, ...]:
    """The prompts of a body; a list of numbers is a single prompt."""
    if not given:
        raise invalid("prompt", "must not be empty.")
    if isinstance(given, str):
        return (given,)
    numbers = tuple(item for item in given if isinstance(item, int))
    if numbers:
        if len(numbers) != len(given):
            raise invalid("prompt", "must be all texts, all token ids, or all lists of token ids.")
        return (numbers,)
    prompts = tuple(item for item in given if not isinstance(item, int))
    if len(prompts) > MAX_PROMPTS:
        raise invalid("prompt", f"must not hold more than {MAX_PROMPTS} prompts.")
    for place, prompt in enumerate(prompts):
        if not prompt:
            raise invalid(f"prompt[{place}]", "must not be empty.")
    return prompts


def _request_of(fields: CompletionRequest, prompt: Prompt, field: str) -> GenerationRequest:
    """`field` is the place of the prompt in the body."""
    shared.check_values(fields)
    if fields.truncation == "auto":
        raise unsupported("truncation", "a raw prompt has no messages to let go; shorten it.")
    if fields.include_reasoning is False:
        raise unsupported("include_reasoning", "raw answers are sent as they are; use /v1/chat/completions.")
    n = fields.n or 1
    if fields.best_of not in (None, n):
        raise unsupported("best_of", "ask for as many as `n`, with `logprobs`, and keep the likeliest.")
    if fields.suffix and not isinstance(prompt, str):
        raise invalid("suffix", "needs a text as `prompt`.")
    if fields.max_tokens == 0 and not fields.echo:
        raise invalid("max_tokens", "may only be 0 with `echo`.")
    request = GenerationRequest(
        model=fields.model,
        prompt=prompt,
        suffix=fields.suffix or None,
        sampling=sampling_of(fields),
        output_format=output_format_of(fields, fields.response_format),
        stop=shared.stops_of(fields.stop),
        max_tokens=DEFAULT_MAX_TOKENS if fields.max_tokens is None else shared.limit_of(fields.max_tokens),
        n=n,
        logprobs=fields.logprobs,
        prompt_logprobs=fields.logprobs if fields.echo else None,
        echo=bool(fields.echo),
        names=called(prompt=field, response_format=format_field_of(fields, fields.response_format)),
    )
    return engine.steered(request, fields)


dialect = CompletionsDialect()
