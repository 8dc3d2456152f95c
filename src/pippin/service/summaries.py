"""Conversation summaries, written by the model itself.

The overflow policy `summarize` replaces the older messages of a conversation that does not fit (`with_summary`). A
client may also request the summary of a whole conversation (`summary_request`).
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from pippin.core.conversation import Message, Text, ToolCall, ToolChoice, ToolResult
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest, Sampling, Thinking

KEPT: Final = 6  # the last messages, which are not summarised
SUMMARY_TOKENS: Final = (1024, 256)
"""Length of the summary, and of a second attempt if the conversation does not fit with the first."""
SUMMARY_TEMPERATURE: Final = 0.2
MOST_PIECES: Final = 8  # most pieces to summarise separately when the older messages do not fit at once
INSTRUCTIONS: Final = (
    "Summarize the conversation {where} for someone who will continue it. Keep names, numbers, decisions, "
    "what tools found, open questions and the user's wishes. Answer with the summary alone."
)
OPENING: Final = "Summary of the conversation before this point:\n\n"
"""Precedes the summary in the message that replaces the summarised ones."""

Ask = Callable[[GenerationRequest], Awaitable[str]]
"""Runs a request on the same model and returns its text."""


async def with_summary(
    request: GenerationRequest, ask: Ask, submit: Callable[[GenerationRequest], Awaitable[None]]
) -> None:
    """Summarise the request's older messages, and pass it to `submit`.

    Tries once more with a shorter summary. Raises `ServerError("context_length_exceeded")` if that does not fit either,
    nothing is left to summarise, no piece fits, or the summary is empty.
    """
    instructions, older, recent = parted(request.messages or ())
    refusal = ServerError(
        "context_length_exceeded",
        "The conversation is longer than the model's context window, also with its older messages summarized. "
        "Shorten the messages.",
        "messages",
    )
    for tokens in SUMMARY_TOKENS:
        try:
            if (text := await _summary(request, older, ask, tokens)).strip():
                summary = Message("user", (Text(OPENING + text),))
                messages = (*instructions, summary, *recent)
                return await submit(msgspec.structs.replace(request, messages=messages))
        except ServerError as error:
            if error.report.kind != "context_length_exceeded":
                raise
            refusal = error
    raise refusal


def summary_request(conversation: GenerationRequest, wish: str = "") -> GenerationRequest:
    """The conversation, ending in a request for its summary, in the words of `wish` if there are any.

    The instructions come last, so that the conversation's cached prefix is used.
    """
    instructions = Message("user", (Text(wish.strip() or INSTRUCTIONS.format(where="up to here")),))
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


def parted(
    messages: tuple[Message, ...],
) -> tuple[tuple[Message, ...], tuple[Message, ...], tuple[Message, ...]]:
    """Instructions, older messages and recent ones. No tool result is separated from its call."""
    instructions = tuple(message for message in messages if message.role in ("system", "developer"))
    rest = tuple(message for message in messages if message.role not in ("system", "developer"))
    cut = max(0, len(rest) - KEPT)
    while cut > 0 and any(isinstance(part, ToolResult) for part in rest[cut].parts):
        cut -= 1
    return instructions, rest[:cut], rest[cut:]


async def _summary(request: GenerationRequest, older: tuple[Message, ...], ask: Ask, tokens: int) -> str:
    """A summary in at most `tokens` tokens: in one piece if that fits the window, else in twice as many, and so on;
    empty if no piece fits."""
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
    return ""


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
        account=request.account,
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
    return " ".join(shown)
