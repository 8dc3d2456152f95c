"""The answer of one choice while it is generated: its stop strings, its parts, its loops, and why it ends.

Stop strings are found across token boundaries, and text that may begin one is held back.
"""

from collections.abc import Callable

from pippin.core.conversation import Tool
from pippin.core.events import Event, FinishReason, Token
from pippin.core.requests import GenerationRequest
from pippin.output.checking import LOOK_EVERY, AnswerCheck, Loops
from pippin.output.reader import Formats, Markup, OutputReader, Thinking, ToolUse


class StopFinder:
    """Looks for stop strings in the text of one stream. `found` is the one that ended it.

    The result does not depend on how the text was cut into tokens: `found` is the stop string that is complete first;
    if several are complete at the same character, it is the longest.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._include = include
        self._begun = frozenset(stop[:size] for stop in stops for size in range(1, len(stop)))
        self._longest = max(map(len, stops), default=1)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Add text; return what may be sent now."""
        if not self._stops:
            return text
        self._held += text
        matches = [
            (start + len(stop), start, stop) for stop in self._stops if (start := self._held.find(stop)) >= 0
        ]
        if matches:
            _, begin, self.found = min(matches)
            shown, self._held = self._held[: begin + (len(self.found) if self._include else 0)], ""
            return shown
        most = min(self._longest - 1, len(self._held))
        keep = next((size for size in range(most, 0, -1) if self._held[-size:] in self._begun), 0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """End the stream, and return the text that was held back, which is no stop string after all."""
        held, self._held = self._held, ""
        return held


class Answer:
    """Reads the text of one choice. A subclass takes its tokens, and tells why the last one is that."""

    finished: FinishReason | None = None
    stop_sequence: str | None = None
    completion_tokens = 0
    reasoning_tokens = 0
    warnings: tuple[str, ...] = ()  # what the choice does not keep to, once it has ended

    def __init__(
        self,
        choice: int,
        request: GenerationRequest,
        formats: Formats,
        *,
        tools: tuple[Tool, ...],
        stops: tuple[str, ...],
        thinking: Thinking,
        markup: Markup,
        spell: Callable[[list[int]], str],
    ) -> None:
        """`tools` and `stops` as the model has them. Of the latter, only those of the request are told to the client.
        `spell` gives the text of tokens."""
        self._wanted = request
        self._spell = spell
        self._closed = False
        self._length = 0  # characters of text so far
        self._stops = StopFinder(stops, include=request.include_stop)
        tools = tools if request.read_calls else ()
        self._check = AnswerCheck(request.output_format, tools)
        use = ToolUse(tools=tools, choice=request.tool_choice, parallel=request.parallel_tool_calls)
        self.reader = OutputReader(choice, formats, use, thinking=thinking, markup=markup)
        self._loops = Loops(request)
        # Who is told of all events: of most choices, nobody.
        self._told = [self._check.see] if request.output_format or tools else []
        self._told += [self._loops.read] if self._loops.watches and tools else []
        self._tokens: list[int] = []  # where loops are watched for
        self._too_short = request.min_tokens > 0

    def close(self, reason: FinishReason) -> list[Event]:
        """Release held-back text and end open parts, unless the last token has done so. `reason` is `finished`, or what
        ended the sequence from outside."""
        if self._closed:
            return []
        self._closed = True
        events: list[Event] = []
        if self._stops.found is None:
            events = self._show(self._rest()) + self._read(self._stops.finish())
        ending = self.reader.finish(truncated=reason == "length", stopped=self.stop_sequence is not None)
        self._check.see(ending)
        events += ending
        if not self.reader.reasoned:  # text that could have been reasoning was the answer
            self.reasoning_tokens = 0
        if self.finished == "stop" and self.stop_sequence is None and self.reader.calls:
            self.finished = "tool_calls"
        if self.stop_sequence is None:
            self.warnings = self._check.warnings(self.finished)
        self.warnings += self._loops.warnings
        return events

    def _rest(self) -> str:
        """The text at the end of tokens that are no whole character yet."""
        return ""

    def _count(self, token: int) -> None:
        """Count the next token, whose text comes with `_show`."""
        self.completion_tokens += 1
        self._too_short = self._too_short and self.completion_tokens < self._wanted.min_tokens
        if self._loops.watches:
            self._tokens.append(token)

    def _show(self, text: str, tokens: tuple[Token, ...] = (), *, markup: bool = False) -> list[Event]:
        """Read text and the tokens that begin with it. Stop strings are looked for only in the answer: not in
        reasoning, nor in `markup` that opens it."""
        self._length += len(text)
        self.reader.tokens.push(text, tokens)
        if self.reader.thinking or self._too_short or markup:
            return self._read(self._stops.finish() + text)
        return self._read(self._stops.feed(text))

    def _read(self, text: str) -> list[Event]:
        events = self.reader.feed(text, self.completion_tokens)
        for told in self._told:
            told(events)
        return events

    def _settle(self, last: FinishReason | None) -> None:
        """Decide whether this was the last token. `last`: why it is, if it is that whatever the text."""
        if self._stops.found is not None:
            found = self._stops.found
            self.finished, self.stop_sequence = "stop", found if found in self._wanted.stop else None
        elif self.reader.done:
            self.finished = "stop"
        elif last is not None:
            self.finished = last
        elif self._loops.watches and not self._too_short:
            if len(self._tokens) % LOOK_EVERY == 0:
                self._loops.look(self._tokens, self._spell)
            if self._loops.over:  # an answer that is not complete, except for its calls
                self.finished = "stop" if self.reader.calls else "length"
