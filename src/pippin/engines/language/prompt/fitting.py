"""What of a conversation goes into the context window, and after which of its messages the prefix cache keeps it."""

from dataclasses import replace

import msgspec

from pippin.core.conversation import Message, Tool, ToolResult
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest
from pippin.engines.language.prompt.rendering import Prompt, PromptRenderer
from pippin.engines.language.text.length import TooLong

MOST_PINS = 8


def fitted(
    renderer: PromptRenderer,
    request: GenerationRequest,
    tools: tuple[Tool, ...],
    window: int,
    reserve: int,
) -> Prompt:
    """The prompt with at least `reserve` tokens of `window` left; raises `context_length_exceeded` otherwise."""
    truncates = request.overflow == "truncate"
    try:
        whole = renderer.prompt(request, tools, most=window)
    except TooLong as error:
        length = f"{error.least} tokens or more"
    else:
        if len(whole.tokens) + (reserve if truncates else min(reserve, 1)) <= window:
            return replace(whole, pins=_pins(renderer, request, tools, whole))
        length = f"{len(whole.tokens)} tokens"
    if truncates and request.messages is not None:
        shorter = _truncated(renderer, request, request.messages, tools, window - reserve)
        if shorter is not None:
            return shorter
    raise overflow(length, window, request)


def overflow(length: str, window: int, request: GenerationRequest) -> ServerError:
    """The refusal of a prompt of this length, such as "9000 tokens", which clients read."""
    field = "prompt" if request.messages is None else "messages"
    return ServerError(
        "context_length_exceeded",
        f"This model's maximum context length is {window} tokens. However, your {field} resulted in {length}. "
        f"Please reduce the length of the {field}.",
        field,
    )


def _pins(
    renderer: PromptRenderer, request: GenerationRequest, tools: tuple[Tool, ...], whole: Prompt
) -> tuple[int, ...]:
    """The counts of tokens up to the messages that ask to be kept."""
    messages = request.messages or ()
    places = [place for place, message in enumerate(messages) if message.pin][-MOST_PINS:]
    pins = set()
    for place in places:
        try:
            tokens = renderer.begun(request, messages[: place + 1], tools)
        except ServerError:  # a conversation cut there may break the template's rules; then nothing is pinned
            continue
        pins.add(_common(tokens, whole.tokens))
    return tuple(sorted(pins - {0}))


def _truncated(
    renderer: PromptRenderer,
    request: GenerationRequest,
    messages: tuple[Message, ...],
    tools: tuple[Tool, ...],
    most: int,
) -> Prompt | None:
    """Without the fewest of the oldest turns that make it fit; None if the last turn alone does not."""
    turns = [place for place, message in enumerate(messages) if place and _begins_turn(message)]
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


def _common(tokens: list[int], whole: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(tokens, whole, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(tokens), len(whole)))
