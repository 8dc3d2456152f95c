"""Parses one choice's text as it is generated into events of text, reasoning and tool calls.

A text may quote a marker of reasoning. If the vocabulary has a token for the marker, only that token counts, except
that an end marker spelled out at the beginning of a line counts too. Such a token is never text, even where it ends
nothing. Without one, reasoning begins only at the beginning of a line. Output enforced by a grammar is read as the
grammar defines it.

Text becomes a call only if it is a complete call of an offered tool (`stream.py`); other text stays text, unchanged and
in order. A limit may cut the text inside a call or a marker: nothing of that is sent.

Stop strings are found across token boundaries, and text that may begin one is held back.
"""

import secrets
import string
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Literal

from msgspec import Struct

from pippin.core.conversation import Tool, ToolChoice
from pippin.core.events import Event, FinishReason, Token
from pippin.core.requests import GenerationRequest
from pippin.output.channels import Channels
from pippin.output.checking import LOOK_EVERY, AnswerCheck, Loops
from pippin.output.notations.arguments import object_text
from pippin.output.notations.json_calls import read_message_call
from pippin.output.reasoning_formats import ReasoningFormat
from pippin.output.stream import Calls, Malformed, Markers, Reading, Source, Writer
from pippin.output.tool_format import ToolFormat

REREAD_LIMIT = 1 << 16
"""Most characters of an answer that are searched for markers again after malformed calls. Bounds the work."""
_ALPHABET = string.ascii_letters + string.digits


def random_call_id(head: str = "call_", length: int = 24) -> str:
    return head + "".join(secrets.choice(_ALPHABET) for _ in range(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """The facts that tell markers from text that quotes them."""

    tokens: frozenset[str] = frozenset()
    """Added tokens of the vocabulary. A marker that contains one counts only at positions given to
    `OutputReader.added_token`."""
    grammar: Literal["none", "calls", "answer"] = "none"
    """What a grammar enforces: nothing; calls, and text in which no call begins; or one answer, which may be calls
    instead if there are tools."""


class Formats(Struct, frozen=True, kw_only=True):
    """A model's formats of calls and reasoning; None if it has none."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools that a request offers, and how they may be called."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()  # noqa: RUF009 (frozen)
    parallel: bool = True


Thinking = Literal["begun", "possible", "marked"]
"""The state of reasoning when the text begins. `begun`: the prompt ends inside it. `possible`: the model may begin it
without a marker, so that an end marker alone closes the text before it. `marked`: it is always between markers."""


class OutputReader:
    """Takes text in any pieces with `feed`, then `finish`; the folded events do not depend on how it was cut."""

    def __init__(
        self,
        choice: int,
        formats: Formats,
        use: ToolUse = ToolUse(),
        *,
        thinking: Thinking = "marked",
        markup: Markup = Markup(),
    ) -> None:
        """`choice` is the index of the answer."""
        tool_format, reasoning_format, thinking_open = formats.tools, formats.reasoning, thinking == "begun"
        self._markup = markup
        self._added: set[int] = set()  # positions at which the text of an added token begins
        self._in_line = False  # the current line, or part, has more than whitespace
        self._answering = False  # inside the answer that a grammar enforces
        # The end of an opener that is only spelled; -1 once anything but white space followed.
        self._quoted_to = -1
        self._tools = tool_format if use.tools else None
        self._reasoning = reasoning_format
        self._source = Source()
        # Mistral's templates require nine letters and digits.
        nine = tool_format is not None and tool_format.history.call_ids == "nine"
        self._writer = Writer(
            choice,
            self._source,
            partial(random_call_id, "", 9) if nine else random_call_id,
            trim=tool_format is not None or reasoning_format is not None,
            parallel=use.parallel,
        )
        self._writer.silent = use.choice.mode == "none"
        # Who has tokens tells it of them and their text, ahead of `feed`.
        self.tokens = self._writer.tokens
        self._calls = Calls(
            self._source,
            self._writer,
            use.tools,
            put_text=self._write,
            object_text=object_text,
            counts=lambda marker: self._is_token(marker) is not False,
        )
        self._reread = REREAD_LIMIT  # characters that may still be read again
        self._may_think = thinking == "possible"
        self._undecided = bool(reasoning_format and reasoning_format.implicit and not thinking_open)
        # Whether the text so far ends inside reasoning.
        self.thinking = bool(reasoning_format and (thinking_open or reasoning_format.implicit))
        if self.thinking:
            self._writer.marker()
        channels = (found.channels for found in (reasoning_format, tool_format) if found)
        self._channels = next(filter(None, channels), None)
        self._markers = {thinking: Markers(self._markers_in(thinking)) for thinking in (False, True)}
        self._reading = self._read()

    @property
    def reasoned(self) -> bool:
        """Whether any of the text so far is, or may still turn out to be, reasoning."""
        return self._undecided or self._writer.reasoned

    @property
    def calls(self) -> int:
        """Complete tool calls so far."""
        return self._writer.calls

    @property
    def done(self) -> bool:
        """Whether a call is complete and no more calls are allowed, so that generation may stop."""
        return self._writer.muted

    def added_token(self, position: int) -> None:
        """Note that the text at this position, counted over all characters fed, is that of an added token. Call it
        before that text is fed."""
        self._added.add(position)

    def feed(self, text: str, completed: int = 0) -> list[Event]:
        """Read more text. `completed` counts all tokens of the choice so far."""
        self._writer.completed = completed
        if text:
            self._source.push(text)
            next(self._reading, None)
        return self._writer.drain()

    def finish(self, *, truncated: bool = False, stopped: bool = False) -> list[Event]:
        """End the text. `truncated`: a limit cut it off, `stopped`: a client's stop string did. Either way an open call
        must not look complete; only a limit cuts markers."""
        # Whether the text that is held back begins a marker. If the vocabulary has a token for it, the token must be in
        # the text: otherwise only the same characters are.
        rest = self._source.rest
        markers = [marker for family in (self._tools, self._reasoning) if family for marker in family.markers]
        markers += [*self._channels.begins] if self._channels else []
        begun = (marker for marker in markers if marker.startswith(rest))
        if truncated and rest and any(self._is_token(marker) is not False for marker in begun):
            self._source.drop_rest()
        self._source.close(truncated=truncated or stopped)
        next(self._reading, None)
        self._writer.finish()
        return self._writer.drain()

    def _markers_in(self, thinking: bool) -> tuple[str, ...]:
        markers: tuple[str, ...] = ()
        if self._tools:
            markers += self._tools.openers + self._tools.dropped
        if self._channels:
            markers += (*self._channels.openers, *self._channels.ends)
        elif self._reasoning:
            if thinking:
                markers += self._reasoning.handoff
            else:
                markers += (self._reasoning.start, *self._reasoning.starts, *self._reasoning.dropped)
            markers += self._closers
        return markers

    @property
    def _may_close(self) -> bool:
        """Whether an end marker of reasoning would close the text before it: the answer is only a first text so far."""
        return self._may_think and not self.thinking and not self._writer.divided

    @property
    def _closers(self) -> tuple[str, ...]:
        """The end markers of reasoning, unless the format has channels."""
        found = self._reasoning
        return (found.end, *found.ends) if found and not self._channels else ()

    def _read(self) -> Reading[None]:
        if self._channels:
            yield from self._read_first_header(self._channels)
        elif self._undecided and self._reasoning:
            yield from self._read_undecided(self._reasoning)
        while not self._writer.muted:
            found = yield from self._until_marker()
            if found is None:
                return
            yield from self._enter(found)

    def _read_undecided(self, reasoning: ReasoningFormat) -> Reading[None]:
        """Read the text before the first marker: it is reasoning if an end marker follows, else text.

        It is held back, because neither clients nor the fold of the stream can turn reasoning into text later.
        """
        ends = (*self._closers, *reasoning.handoff)
        calls = self._tools.openers if self._tools else ()
        held: list[str] = []
        marker = yield from self._source.until(
            Markers((reasoning.start, *reasoning.starts, *ends, *calls)), held.append
        )
        if marker is not None:
            self._source.rewind(marker)
        self.thinking = marker in ends
        self._undecided = False
        self._write("".join(held))

    def _until_marker(self) -> Reading[str | None]:
        """Read text up to the next marker, which is returned; None at the end of the stream."""
        source = self._source
        if not self._writer.part_open and (leading := self._leading()):
            self._write((yield from source.space()))
            found = yield from source.literal(*leading)
            if found:
                source.rewind(found)
                if self._counts(found):
                    return source.take(len(found))
        return (yield from source.until(self._markers[self.thinking], self._write, self._counts))

    def _counts(self, marker: str) -> bool:
        """Whether the next marker is really a marker, not a quotation."""
        tools, reasoning, held = self._tools, self._reasoning, self._markup.grammar != "none"
        answering = self._answering and self._markup.grammar == "answer"
        token = self._is_token(marker)
        if tools and marker in (*tools.openers, *tools.leading, *tools.dropped):
            if token is False:
                self._quoted_to = self._source.position + len(marker)
            # What no token tells is a quotation behind another one: `<tool_call>` spelled before `<function=`.
            quoted = token is None and self._quoted_to >= 0
            return not (answering or quoted or token is False)
        if self._channels:
            return not answering if token is None else token
        assert reasoning is not None
        if self.thinking:
            return token is not False or not self._in_line
        if marker in self._closers and self._writer.part_open and not self._may_close:
            return token is True and not answering
        if held or token is False:
            first = self._markup.grammar == "calls" and not self._writer.begun
            return token is True or (token is None and first)
        return not (self._in_line and marker in (reasoning.start, *reasoning.starts))

    def _is_token(self, marker: str) -> bool | None:
        """Whether the next marker was generated as a token of its own; None if the vocabulary has no such token."""
        within = [text for text in self._markup.tokens if text in marker]
        if not within:
            return None
        return self._source.position + marker.find(max(within, key=len)) in self._added

    def _leading(self) -> tuple[str, ...]:
        """Markers that count only before any text: calls without an opener, a start of reasoning that repeats the
        prompt's, and an end of it that repeats the prompt's or the one before."""
        reasoning = None if self._channels else self._reasoning
        if self.thinking:
            return (reasoning.start, *reasoning.starts) if reasoning and not self._writer.begun else ()
        # Of an opener that begins as a call without one does, as `[TOOL_CALLS]` and `[`, the longer is taken.
        leading = (*self._tools.leading, *self._tools.openers) if self._tools and self._tools.leading else ()
        return (*leading, reasoning.end, *reasoning.ends) if reasoning and not self._answering else leading

    def _write(self, text: str) -> None:
        if (
            self._quoted_to >= 0
            and text[max(self._quoted_to - self._source.position + len(text), 0) :].strip()
        ):
            self._quoted_to = -1
        before, feed, line = text.rpartition("\n")
        begun = bool(line.strip())
        self._in_line = begun or (self._in_line and not feed)
        if not self.thinking and (begun or before.strip()):
            self._answering = True
        self._writer.write("reasoning" if self.thinking else "text", text)

    def _enter(self, marker: str) -> Reading[None]:
        """Handle a marker."""
        reasoning, tools, channels = self._reasoning, self._tools, self._channels
        self._in_line, self._quoted_to = False, -1
        if channels and marker in channels.openers:
            yield from self._read_message(channels, marker)
        elif channels and marker in channels.ends:
            self.thinking = False
            self._writer.marker()
        elif tools and marker in (*tools.openers, *tools.leading):
            if reasoning and self.thinking and marker in reasoning.handoff:
                self.thinking = False
            yield from self._read_call(tools, marker)
        else:
            if reasoning and marker in (reasoning.start, *reasoning.starts):
                self.thinking = True
            elif reasoning and marker in (reasoning.end, *reasoning.ends):
                if self._may_close and self._writer.part_open:
                    self._writer.end_thought()
                    return
                self.thinking = False
            self._writer.marker()

    def _read_call(self, tools: ToolFormat, opener: str) -> Reading[None]:
        self._calls.open(opener)
        try:
            yield from tools.read(self._calls, opener)
        except Malformed:
            self._release()
        else:
            yield from self._end_block(tools)

    def _end_block(self, tools: ToolFormat) -> Reading[None]:
        """End a block of calls. What closes it is dropped, also what closes it once more than it was opened."""
        found: str | None = "" if self._calls.close() else None
        while found is not None:
            self._write((yield from self._source.space()))
            found = yield from self._source.literal("}", "]", *tools.closers)

    def _read_first_header(self, channels: Channels) -> Reading[None]:
        """Read the rest of a header that the prompt may have begun."""
        self._source.remember()
        yield from self._source.space()
        names = tuple(f"{tool.name}\n" for tool in self._calls.tools) if channels.recipients else ()
        begun = yield from self._source.literal(*channels.begins, *names)
        taken = self._source.recall()
        if begun:
            yield from self._read_message(channels, taken)
        else:
            self._write(taken)

    def _read_message(self, channels: Channels, opener: str) -> Reading[None]:
        """Read a header, and if it announces a call, its arguments; the main loop reads other text."""
        self._calls.open(opener)
        try:
            route = yield from channels.read_header(self._source, opener)
            if channels.known and route.channel == "call" and self._calls.schema(route.name) is None:
                raise Malformed
            if route.channel == "call" and self._tools:
                self.thinking = False
                yield from read_message_call(self._calls, route.name, channels.ends)
                yield from self._end_block(self._tools)
            else:
                self.thinking = route.channel == "reasoning"
                self._answering |= not self.thinking
                self._writer.marker()
                self._calls.close()
        except Malformed:
            self._release()

    def _release(self) -> None:
        """Give up a malformed call: it becomes text, unless a limit cut the text inside the call."""
        opener, taken = self._calls.give_up()
        if self._source.cut:
            return
        self._reread -= len(taken)
        if self._reread >= 0:
            self._source.rewind(taken)
            self._write(opener)
        else:
            self._write(opener + taken)


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


class ChoiceReader(ABC):
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
    ) -> None:
        """`tools` and `stops` as the model has them. Of the latter, only those of the request are told to the
        client."""
        self._wanted = request
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

    @abstractmethod
    def _spell(self, tokens: list[int]) -> str:
        """The text of tokens."""

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
