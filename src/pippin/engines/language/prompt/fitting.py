"""Fits a conversation into the context window, and finds the prefixes of it that the prefix cache keeps."""

from dataclasses import replace

import msgspec

from pippin.core.conversation import Message, Tool, ToolResult
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest
from pippin.engines.language.prompt.rendering import PromptRenderer, RenderedPrompt
from pippin.engines.language.text.length import TooLong

MOST_PINS = 8
"""The most messages of a request whose prefix is kept: the last ones of those that ask for it."""


def fit_prompt(
    renderer: PromptRenderer,
    request: GenerationRequest,
    tools: tuple[Tool, ...],
    context_window: int,
    reserve: int,
) -> RenderedPrompt:
    """Render the prompt, and leave at least `reserve` tokens of the context window to the answer.

    With `overflow: truncate` the oldest turns of a conversation are dropped for that. Otherwise one free token is
    enough. Raises `ServerError("context_length_exceeded")` for a prompt that is too long.
    """
    truncates = request.overflow == "truncate"
    try:
        whole = renderer.prompt(request, tools, most=context_window)
    except TooLong as error:
        length = f"{error.least} tokens or more"
    else:
        if len(whole.tokens) + (reserve if truncates else min(reserve, 1)) <= context_window:
            return replace(whole, pins=_pins(renderer, request, tools, whole))
        length = f"{len(whole.tokens)} tokens"
    if truncates and request.messages is not None:
        shorter = _truncated(renderer, request, request.messages, tools, context_window - reserve)
        if shorter is not None:
            return shorter
    raise too_long(length, context_window, request)


def too_long(length: str, context_window: int, request: GenerationRequest) -> ServerError:
    """The refusal of a prompt of this length, such as "9000 tokens", in the words that clients read."""
    field = "prompt" if request.messages is None else "messages"
    return ServerError(
        "context_length_exceeded",
        f"This model's maximum context length is {context_window} tokens. However, your {field} resulted in {length}. "
        f"Please reduce the length of the {field}.",
        field,
    )


def _pins(
    renderer: PromptRenderer, request: GenerationRequest, tools: tuple[Tool, ...], whole: RenderedPrompt
) -> tuple[int, ...]:
    """The counts of prompt tokens up to and including the messages that ask to be kept in the prefix cache."""
    messages = request.messages or ()
    pinned = [index for index, message in enumerate(messages) if message.pin][-MOST_PINS:]
    pins = set()
    for index in pinned:
        try:
            tokens = renderer.prefix(request, messages[: index + 1], tools)
        except ServerError:
            # A conversation that ends there may break the template's rules; then nothing is pinned.
            continue
        pins.add(_shared_length(tokens, whole.tokens))
    return tuple(sorted(pins - {0}))


def _truncated(
    renderer: PromptRenderer,
    request: GenerationRequest,
    messages: tuple[Message, ...],
    tools: tuple[Tool, ...],
    most: int,
) -> RenderedPrompt | None:
    """The prompt without as few of the oldest turns as make it fit, or None if the last turn alone does not.

    System messages are kept.
    """
    turns = [index for index, message in enumerate(messages) if index and _begins_turn(message)]
    low, high, found = 0, len(turns) - 1, None
    while low <= high:
        middle = (low + high) // 2
        cut = turns[middle]
        kept = (*(m for m in messages[:cut] if m.role in ("system", "developer")), *messages[cut:])
        try:
            prompt = renderer.prompt(msgspec.structs.replace(request, messages=kept), tools, most=most)
        except TooLong:
            prompt = None
        if prompt is not None and len(prompt.tokens) <= most:
            found = replace(prompt, dropped=len(messages) - len(kept))
            high = middle - 1
        else:
            low = middle + 1
    return found


def _begins_turn(message: Message) -> bool:
    return message.role == "user" and not any(isinstance(part, ToolResult) for part in message.parts)


def _shared_length(tokens: list[int], whole: tuple[int, ...]) -> int:
    """The length of the longest common prefix."""
    pairs = enumerate(zip(tokens, whole, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(tokens), len(whole)))
