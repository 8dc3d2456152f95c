"""Finds answers that repeat themselves without end: blocks of tokens, and calls of tools.

A period is a run of tokens that the end of an answer consists of, several times over. Sound answers repeat too: tables,
test data, zeros, a word that somebody wants a hundred times. So a period that says something must come three times and
for `LEAST` tokens more, one that says little for `LITTLE` tokens, and each oftener than any number that the user named.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from pippin.core.conversation import Text, ToolCall, ToolResult
from pippin.core.events import Event, PartDelta, PartEnded, PartStarted
from pippin.core.requests import GenerationRequest

LOOK_EVERY: Final = 32  # tokens
LONGEST: Final = 1024  # tokens of a period
SAME: Final = 16  # tokens that are looked for earlier in the text
MOST_PLACES: Final = 4  # where they are found, the last ones

REPETITIONS: Final = 3
LEAST: Final = 96  # tokens beyond those
WORDS: Final = 4  # different ones, in a period that says something
LITTLE: Final = 4096  # tokens of a loop whose period says little, or what the user said
CALLS: Final = 4  # of a tool, with the same arguments
RESULTS: Final = 3  # of such calls, which are the same

# Scripts without spaces between words: each character counts as one.
_UNSPACED: Final = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD: Final = re.compile(rf"[^\W\d_{_UNSPACED}]{{2,}}|[{_UNSPACED}]")
_NUMBER: Final = re.compile(r"(?<!\d)\d{1,4}(?!\d)")
SHORT: Final = 2000  # characters of a message whose words and numbers count: in a longer one they are data
MOST_NAMED: Final = 100
TOKENS_OF_ONE: Final = 4  # of the things that a number in the message may count


def period_of(tokens: list[int]) -> int:
    """The length of the shortest period that makes up the end of `tokens` three times and for `LEAST` tokens more; 0 if
    there is none."""
    tail = tokens[-SAME:]
    before = tokens[-2 : -LONGEST - 2 : -1]  # the last token but one comes first
    period = 0
    for _ in range(MOST_PLACES):
        while True:
            if tail[-1] not in before[period:]:
                return 0
            period = before.index(tail[-1], period) + 1
            if tokens[-SAME - period : -period] == tail:
                break
        length = REPETITIONS * period + LEAST
        if len(tokens) >= length and tokens[-length:-period] == tokens[period - length :]:
            return period
    return 0


class Loops:
    """Watches one choice. `over`: it must end; `warnings` says why, or what was found."""

    def __init__(self, request: GenerationRequest) -> None:
        self.watches = request.loop_guard in ("warn", "stop") and not request.ignore_eos
        self.over = False
        self.warnings: tuple[str, ...] = ()
        self._stops = request.loop_guard == "stop"
        said = _last_said(request) if self.watches else ""
        self._said = _words(said)
        self._named = max(map(int, _NUMBER.findall(said)), default=0)
        self._calls: Counter[tuple[str | None, str]] = Counter()
        self._call: tuple[str | None, str] | None = None  # the one that is being read

    def look(self, tokens: list[int], text_of: Callable[[list[int]], str]) -> None:
        """Look at all tokens so far, after every `LOOK_EVERY`."""
        if self.warnings or not (period := period_of(tokens)):
            return
        length = self._most(text_of(tokens[-period:]), period)
        if len(tokens) >= length and tokens[-length:-period] == tokens[period - length :]:
            self._found(f"The answer repeats {period} token{'s' * (period > 1)}")

    def read(self, events: Iterable[Event]) -> None:
        """Count the calls that these events of the choice end."""
        for event in events:
            if type(event) is PartStarted and event.kind == "tool_call":
                self._call = event.name, ""
            elif type(event) is PartDelta and self._call is not None:
                self._call = self._call[0], self._call[1] + event.text
            elif type(event) is PartEnded and self._call is not None:
                call, self._call = self._call, None
                self._calls[call] += 1
                if self._calls[call] >= max(CALLS, self._named + 1) and not self.warnings:
                    self._found(f"The answer calls `{call[0]}` with the same arguments")

    def _most(self, text: str, period: int) -> int:
        """The tokens that repetitions of a period with this text fill at least if they are a loop."""
        words = _words(text)
        if text.strip() and (len(words) < WORDS or words <= self._said):
            return max(LITTLE, (self._named + 1) * period)
        # A large number is rather one of words that an answer should have.
        return max(
            REPETITIONS * period, (min(self._named, MOST_NAMED) + 1) * period, TOKENS_OF_ONE * self._named
        )

    def _found(self, what: str) -> None:
        self.over = self._stops
        told = "so it was ended here" if self._stops else "and was not ended"
        self.warnings = (f"{what} again and again, {told}: see `loop_guard`.",)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _last_said(request: GenerationRequest) -> str:
    """The last text of the user's, or the end of a raw prompt; nothing if it is long."""
    if request.messages is None:
        return request.prompt[-SHORT:] if isinstance(request.prompt, str) else ""
    for message in reversed(request.messages):
        text = "".join(part.text for part in message.parts if isinstance(part, Text))
        if message.role == "user" and text:
            return text if len(text) <= SHORT else ""
    return ""


def repeated_calls(request: GenerationRequest) -> tuple[str, ...]:
    """Warns of a call that a conversation has with the same arguments and the same result, several times in a row."""
    if request.loop_guard not in ("warn", "stop"):
        return ()
    messages = request.messages or ()
    results = {
        part.call_id: part.parts
        for message in messages
        for part in message.parts
        if isinstance(part, ToolResult)
    }
    calls = [part for message in messages for part in message.parts if isinstance(part, ToolCall)]
    count, last = 0, None
    for call in reversed(calls):
        same = call.name, call.arguments, results.get(call.id)
        last = last or same
        if same != last or same[2] is None:
            break
        count += 1
    if last is None or count < RESULTS:
        return ()
    return (
        f"The conversation ends with {count} calls of `{last[0]}` with the same arguments and the same result.",
    )
