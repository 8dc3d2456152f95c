"""Summaries of conversations, written by the model itself.

The overflow policy `summarize` replaces the older messages of a conversation that does not fit (`with_summary`); a
client may also ask for the summary of a whole conversation (`summary_request`).
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from pippin.core.conversation import Message, Text, ToolCall, ToolChoice, ToolResult
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest, Sampling, Thinking

KEPT: Final = 6  # the last messages, which stay as they are
SUMMARY_TOKENS: Final = (1024, 256)
"""Length of the summary, and of the one after it where the conversation does not fit with the first."""
SUMMARY_TEMPERATURE: Final = 0.2
MOST_PIECES: Final = 8  # parts that the older messages are cut into, when they do not fit at once
INSTRUCTIONS: Final = (
    "Summarize the conversation {where} for someone who will continue it. Keep names, numbers, decisions, "
    "what tools found, open questions and the user's wishes. Answer with the summary alone."
)
OPENING: Final = "Summary of the conversation before this point:\n\n"
"""Stands before a summary in the message that takes the place of what it summarises."""

Ask = Callable[[GenerationRequest], Awaitable[str]]
"""Runs a request on the same model, for its text."""

Answer = TypeVar("Answer")


async def with_summary(
    request: GenerationRequest, ask: Ask, submit: Callable[[GenerationRequest], Awaitable[Answer]]
) -> tuple[Answer, int]:
    """What `submit` makes of the request with its older messages summarised, and how many those were.

    Tried again with a shorter summary; raises `ServerError("context_length_exceeded")` where that does not fit either.
    """
    refusal = _too_long()
    for tokens in SUMMARY_TOKENS:
        try:
            shorter, dropped = await summarized(request, ask, tokens)
            return await submit(shorter), dropped
        except ServerError as error:
            if error.report.kind != "context_length_exceeded":
                raise
            refusal = error
    raise refusal


def summary_request(conversation: GenerationRequest) -> GenerationRequest:
    """The conversation with a request for its summary instead of an answer.

    The instructions come last, so that what the prefix cache holds of the conversation is used.
    """
    instructions = Message("user", (Text(INSTRUCTIONS.format(where="up to here")),))
    return msgspec.structs.replace(
        conversation,
        messages=(*(conversation.messages or ()), instructions),
        tool_choice=ToolChoice("none"),
        output_format=None,
        logprobs=None,
        stop=(),
        max_tokens=conversation.max_tokens or SUMMARY_TOKENS[0],
        thinking=Thinking(enabled=False),
        continue_final=False,
    )


async def summarized(request: GenerationRequest, ask: Ask, tokens: int) -> tuple[GenerationRequest, int]:
    """The request with its older messages summarised in at most so many tokens, and how many those were.

    Raises `ServerError("context_length_exceeded")` where nothing is left to summarise, no piece of it fits, or the
    model has nothing to say of it.
    """
    instructions, older, recent = parted(request.messages or ())
    if not older:
        raise _too_long()
    text = await _summary(request, older, ask, tokens)
    if not text.strip():
        raise _too_long()
    summary = Message("user", (Text(OPENING + text),))
    return msgspec.structs.replace(request, messages=(*instructions, summary, *recent)), len(older)


def parted(
    messages: tuple[Message, ...],
) -> tuple[tuple[Message, ...], tuple[Message, ...], tuple[Message, ...]]:
    """Instructions, older messages, and the last ones; no tool result is parted from its call."""
    instructions = tuple(message for message in messages if message.role in ("system", "developer"))
    rest = tuple(message for message in messages if message.role not in ("system", "developer"))
    cut = max(0, len(rest) - KEPT)
    while cut > 0 and _has_results(rest[cut]):
        cut -= 1
    return instructions, rest[:cut], rest[cut:]


async def _summary(request: GenerationRequest, older: tuple[Message, ...], ask: Ask, tokens: int) -> str:
    """In one piece if it fits the window, else in twice as many."""
    pieces = 1
    while pieces <= min(MOST_PIECES, len(older)):
        size = -(-len(older) // pieces)
        try:
            summaries = [
                await ask(_transcript_request(request, older[start : start + size], tokens // pieces))
                for start in range(0, len(older), size)
            ]
        except ServerError as error:
            if error.report.kind != "context_length_exceeded":
                raise
            pieces *= 2
        else:
            return "\n".join(summaries)
    raise _too_long()


def _transcript_request(
    request: GenerationRequest, messages: tuple[Message, ...], tokens: int
) -> GenerationRequest:
    transcript = "\n".join(f"{message.role}: {_shown(message)}" for message in messages)
    return GenerationRequest(
        model=request.model,
        messages=(Message("user", (Text(f"{INSTRUCTIONS.format(where='below')}\n\n{transcript}"),)),),
        sampling=Sampling(temperature=SUMMARY_TEMPERATURE, seed=request.sampling.seed),
        max_tokens=tokens,
        thinking=Thinking(enabled=False),
        overflow="error",
        adapter=request.adapter,
        cache_salt=request.cache_salt,
        priority=request.priority,
    )


def _shown(message: Message) -> str:
    shown = []
    for part in message.parts:
        match part:
            case Text(text):
                shown.append(text)
            case ToolCall(_, name, arguments):
                shown.append(f"[called {name} with {arguments}]")
            case ToolResult(_, parts):
                shown += [inner.text for inner in parts if isinstance(inner, Text)]
            case _:
                pass
    return " ".join(shown)


def _has_results(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _too_long() -> ServerError:
    return ServerError(
        "context_length_exceeded",
        "The conversation is longer than the model's context window, also with its older messages summarized. "
        "Shorten the messages.",
        "messages",
    )
