"""The event sequences that every dialect's golden frames are drawn from: the same ones for all."""

from pippin.core.errors import ErrorReport
from pippin.core.events import (
    Accepted,
    Event,
    Failed,
    Finished,
    FinishReason,
    PartDelta,
    PartEnded,
    PartKind,
    PartStarted,
    Progress,
    PromptEcho,
    Timings,
    Token,
    TopToken,
    Usage,
)

TIMINGS = Timings(queue=1.0, prefill=20.0, decode=80.0)


def usage(completion: int, *, cached: int = 0, reasoning: int = 0, stored: int = 0) -> Usage:
    return Usage(
        prompt_tokens=12,
        cached_tokens=cached,
        stored_tokens=stored,
        completion_tokens=completion,
        reasoning_tokens=reasoning,
    )


def accepted() -> Accepted:
    return Accepted(prompt_tokens=12)


def part(
    kind: PartKind,
    *texts: str,
    choice: int = 0,
    index: int = 0,
    id: str | None = None,
    name: str | None = None,
    tokens: bool = False,
) -> list[Event]:
    deltas = [
        PartDelta(
            choice=choice,
            index=index,
            text=text,
            tokens=(token(100 + place, text),) if tokens else (),
            completed=place + 1,
        )
        for place, text in enumerate(texts)
    ]
    return [PartStarted(choice, index, kind, id, name), *deltas, PartEnded(choice, index)]


def token(id: int, text: str, logprob: float = -0.25) -> Token:
    raw = text.encode()
    return Token(id, raw, logprob, (TopToken(id, raw, logprob), TopToken(id + 1, b" other", -2.5)))


def end(
    completion: int,
    reason: FinishReason = "stop",
    *,
    choice: int = 0,
    stop: str | None = None,
    cached: int = 0,
    reasoning: int = 0,
    stored: int = 0,
) -> Finished:
    return Finished(
        choice=choice,
        reason=reason,
        stop_sequence=stop,
        usage=usage(completion, cached=cached, reasoning=reasoning, stored=stored),
        timings=TIMINGS,
    )


def weather(*texts: str, choice: int = 0, index: int = 0) -> list[Event]:
    return part("tool_call", *texts, choice=choice, index=index, id="call_a1", name="get_weather")


def time(*texts: str, index: int = 0) -> list[Event]:
    return part("tool_call", *texts, index=index, id="call_b2", name="get_time")


def called(arguments: str, result: str, *, is_error: bool, index: int = 0) -> list[Event]:
    """A tool of a server that Pippin calls, and what it said."""
    name = f"call_s{index}"
    return [
        PartStarted(0, index, "server_call", name, "add", "demo"),
        PartDelta(0, index, arguments, (), 3),
        PartEnded(0, index),
        PartStarted(0, index + 1, "server_result", name, is_error=is_error),
        PartDelta(0, index + 1, result),
        PartEnded(0, index + 1),
    ]


SPLIT_EMOJI = Token(7, b"\xf0\x9f", -0.5)

SEQUENCES: dict[str, list[Event]] = {
    "text": [accepted(), *part("text", "Hello", ", world"), end(2)],
    "empty": [accepted(), end(0)],
    "empty_part": [accepted(), *part("text"), end(1)],
    "one_delta": [accepted(), *part("text", "Yes."), end(1)],
    "unicode": [accepted(), *part("text", "Grüße ", "😀", "\u2028", '"quoted"\\', "\n\tend\x00"), end(5)],
    "long_text": [accepted(), *part("text", *[f"word{number} " for number in range(40)]), end(40)],
    "progress": [
        accepted(),
        Progress(done=4, total=12, cached=4),
        Progress(done=12, total=12, cached=4),
        *part("text", "Late"),
        end(1, cached=4),
    ],
    "length": [accepted(), *part("text", "cut o"), end(2, "length")],
    "stop_sequence": [accepted(), *part("text", "one, two"), end(4, stop=", three")],
    "cached": [accepted(), *part("text", "again"), end(1, cached=8, stored=4)],
    "reasoning_then_text": [
        accepted(),
        *part("reasoning", "Let me", " think."),
        *part("text", "42", index=1),
        end(4, reasoning=3),
    ],
    "reasoning_only_cut": [accepted(), *part("reasoning", "Still thin"), end(3, "length", reasoning=3)],
    "reasoning_empty": [accepted(), *part("reasoning"), *part("text", "Hi", index=1), end(2)],
    "reasoning_between": [
        accepted(),
        *part("text", "First"),
        *part("reasoning", "hmm", index=1),
        *part("text", "Second", index=2),
        end(5, reasoning=1),
    ],
    "tool_call": [
        accepted(),
        *weather('{"city"', ': "Paris"}'),
        end(8, "tool_calls"),
    ],
    "tool_call_without_arguments": [
        accepted(),
        *time("{}"),
        end(4, "tool_calls"),
    ],
    "two_tool_calls": [
        accepted(),
        *weather('{"city": "Paris"}'),
        *time('{"zone": ', '"CET"}', index=1),
        end(16, "tool_calls"),
    ],
    "text_then_tool_call": [
        accepted(),
        *part("text", "I will look."),
        *weather('{"city": "Oslo"}', index=1),
        end(9, "tool_calls"),
    ],
    "text_around_tool_call": [
        accepted(),
        *part("text", "Before."),
        *weather('{"city": "Rome"}', index=1),
        *part("text", "After.", index=2),
        end(12, "tool_calls"),
    ],
    "reasoning_then_tool_call": [
        accepted(),
        *part("reasoning", "Need the weather."),
        *weather('{"city": "Bern"}', index=1),
        end(11, "tool_calls", reasoning=4),
    ],
    "tool_call_cut": [
        accepted(),
        *weather('{"city": "Pa'),
        end(5, "length"),
    ],
    "logprobs": [accepted(), *part("text", "Hello", " there", tokens=True), end(2)],
    "logprobs_of_split_character": [
        accepted(),
        PartStarted(0, 0, "text"),
        PartDelta(0, 0, "", (SPLIT_EMOJI,), 1),
        PartDelta(0, 0, "😀", (Token(8, b"\x98\x80", -0.125),), 2),
        PartEnded(0, 0),
        end(2),
    ],
    "prompt_echo": [
        accepted(),
        PromptEcho("The sky", (Token(1, b"The", None), Token(2, b" sky", -1.5))),
        *part("text", " is", tokens=True),
        end(1, "length"),
    ],
    "two_choices": [
        accepted(),
        PartStarted(0, 0, "text"),
        PartStarted(1, 0, "text"),
        PartDelta(0, 0, "left", (), 1),
        PartDelta(1, 0, "right", (), 1),
        PartDelta(0, 0, " side", (), 2),
        PartEnded(0, 0),
        end(2),
        PartEnded(1, 0),
        end(1, "length", choice=1),
    ],
    "two_choices_with_calls": [
        accepted(),
        *weather('{"city": "Graz"}'),
        end(6, "tool_calls"),
        *part("text", "No need.", choice=1),
        end(3, choice=1),
    ],
    "fails_at_once": [
        accepted(),
        Failed(ErrorReport(kind="overloaded", message="Try again.", retry_after=2.0)),
    ],
    "fails_in_text": [
        accepted(),
        PartStarted(0, 0, "text"),
        PartDelta(0, 0, "Once upon", (), 2),
        Failed(ErrorReport(kind="worker_died", message="The model's process ended.")),
    ],
    "fails_in_tool_call": [
        accepted(),
        PartStarted(0, 0, "tool_call", "call_a1", "get_weather"),
        PartDelta(0, 0, '{"ci', (), 3),
        Failed(ErrorReport(kind="internal", message="The model failed.")),
    ],
}
