"""What a reader works with: the source of text that is not consumed yet, the writer of events, and the call being read.

Readers of formats are generators that `yield` to wait for more text. A format's code therefore reads like a grammar,
and its decisions can't depend on where the stream was cut.

Text is a call only if it is a complete call of an offered tool, with arguments that are one JSON object. So a call is
held back until its end, however long it is: clients run what they were sent the beginning of. Keep-alives fill the
silence.
"""

import re
import sys
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

from pippin.core.conversation import Tool
from pippin.core.events import Event, PartDelta, PartEnded, PartKind, PartStarted, Token


class Markers:
    """Literal strings to search for. The leftmost match wins, then the longest; a tail that may still become a marker
    is held back."""

    def __init__(self, markers: tuple[str, ...]) -> None:
        longest_first = sorted(set(markers), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._beginnings = frozenset(marker[:size] for marker in markers for size in range(1, len(marker)))
        self._firsts = frozenset(marker[0] for marker in markers)
        self._reach = max((len(marker) for marker in markers), default=1) - 1

    def split(self, text: str, start: int, ended: bool) -> tuple[int, str | None]:
        """Where the plain part of `text[start:]` ends, and the marker there.

        The marker is None if the plain part is followed by the beginning of a marker, or by nothing.
        """
        plain = len(text)
        for index in range(plain if ended else max(start, plain - self._reach), plain):
            if text[index] in self._firsts and text[index:] in self._beginnings:
                plain = index
                break
        match = self._pattern.search(text, start) if self._pattern else None
        if match and match.start() < plain:
            return match.start(), match.group()
        return plain, None


T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
Put: TypeAlias = Callable[[str], None]

SPACE = " \t\r\n"
UNLIMITED: Final = sys.maxsize


class Malformed(Exception):
    """The text does not follow the format. The text since the last good point can be recalled."""


class Source:
    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # text before this index was taken
        self._taken: list[str] = []  # texts taken since `remember`
        self.position = 0  # characters taken so far
        self._remembering = False
        self.ended = False
        self.truncated = False

    @property
    def rest(self) -> str:
        """The text that was pushed and not taken yet."""
        return self._text[self._at :]

    @property
    def cut(self) -> bool:
        """Whether a limit ended the text, and all of it was taken."""
        return self.truncated and self._at == len(self._text)

    def push(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def drop_rest(self) -> None:
        self._text, self._at = "", 0

    def close(self, *, truncated: bool) -> None:
        self.ended, self.truncated = True, truncated

    def remember(self) -> None:
        """Keep the text taken from here on, so that it can be given back."""
        self._taken, self._remembering = [], True

    def recall(self) -> str:
        """Return the text taken since `remember`, and stop keeping it."""
        taken = "".join(self._taken)
        self._taken, self._remembering = [], False
        return taken

    def rewind(self, taken: str) -> None:
        """Put back the text taken last, to be read in another way."""
        if self._at >= len(taken):
            self._at -= len(taken)
        else:
            self._text, self._at = taken + self._text[self._at :], 0
        self.position -= len(taken)

    def take(self, count: int) -> str:
        taken = self._text[self._at : self._at + count]
        self._at += count
        self.position += count
        if self._remembering:
            self._taken.append(taken)
        return taken

    def more(self) -> Reading[bool]:
        """Wait for text; False at the end."""
        while self._at == len(self._text):
            if self.ended:
                return False
            yield
        return True

    def peek(self) -> Reading[str]:
        """The next character, without taking it; empty at the end."""
        return self._text[self._at] if (yield from self.more()) else ""

    def exactly(self, count: int) -> Reading[str]:
        """Take `count` characters; malformed if the stream ends before."""
        while len(self._text) - self._at < count:
            if self.ended:
                raise Malformed
            yield
        return self.take(count)

    def literal(self, *options: str) -> Reading[str | None]:
        """Take the longest of `options` that comes next; None if there is none."""
        while not self.ended and any(self._begins(option) for option in options):
            yield
        if self.truncated and any(self._begins(option) for option in options):
            self.drop_rest()  # markup that a limit has cut
        fitting = [option for option in options if self._text.startswith(option, self._at)]
        return self.take(len(max(fitting, key=len))) if fitting else None

    def _begins(self, option: str) -> bool:
        left = len(self._text) - self._at
        return left < len(option) and option.startswith(self._text[self._at :])

    def expect(self, *options: str) -> Reading[str]:
        found = yield from self.literal(*options)
        if found is None:
            raise Malformed
        return found

    def span(self, characters: str) -> Reading[str]:
        """Take all of these characters that come next."""
        taken = []
        while (yield from self.more()):
            end = self._at
            while end < len(self._text) and self._text[end] in characters:
                end += 1
            taken.append(self.take(end - self._at))
            if self._at < len(self._text):
                break
        return "".join(taken)

    def upto(self, end: re.Pattern[str], limit: int = UNLIMITED) -> Reading[str]:
        """Take the text before the next match of a one-character pattern, or the end. Malformed exactly at the limit,
        wherever the stream was cut."""
        pieces: list[str] = []
        left = limit
        while (yield from self.more()):
            found = end.search(self._text, self._at)
            count = (found.start() if found else len(self._text)) - self._at
            pieces.append(self.take(min(count, left)))
            if count > left:
                raise Malformed
            if found:
                break
            left -= count
        return "".join(pieces)

    def word(self, end: re.Pattern[str], limit: int = 256) -> Reading[str]:
        """Like `upto`. Malformed if the text is empty."""
        text = yield from self.upto(end, limit)
        if not text:
            raise Malformed
        return text

    def space(self) -> Reading[str]:
        return (yield from self.span(SPACE))

    def until(
        self, markers: Markers, put: Put, counts: Callable[[str], bool] = lambda _: True
    ) -> Reading[str | None]:
        """Put the text before the next marker, piece by piece. Takes and returns the marker; None at the end.

        `counts` decides about each marker before it is taken; a marker that does not count is text.
        """
        while True:
            plain, marker = markers.split(self._text, self._at, self.ended)
            if plain > self._at:
                put(self.take(plain - self._at))
            if marker is not None and counts(marker):
                return self.take(len(marker))
            if marker is not None:
                put(self.take(1))
                continue
            if self.ended:
                return None
            yield

    def before(self, markers: Markers, limit: int = 256) -> Reading[tuple[str, str]]:
        """Take a short text and the marker that ends it. Malformed if it is too long, or if the stream ends."""
        text, marker = yield from self.head(markers, limit)
        if marker is None:
            raise Malformed
        return text, marker

    def head(self, markers: Markers, limit: int = 256) -> Reading[tuple[str, str | None]]:
        """Take a short text and the marker that ends it; None instead of the marker if it does not come within the
        limit, or not before the end of the stream."""
        pieces: list[str] = []
        left = limit
        while True:
            plain, marker = markers.split(self._text, self._at, self.ended)
            count = plain - self._at
            pieces.append(self.take(min(count, left)))
            if count > left:
                return "".join(pieces), None
            left -= count
            if marker is not None or self.ended:
                return "".join(pieces), marker and self.take(len(marker))
            yield


class TokenQueue:
    """Tokens whose text is not sent yet, each with the position where its text begins."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Token]] = deque()
        self._textless: list[Token] = []  # incomplete characters, whose text comes later
        self._end = 0

    def push(self, text: str, tokens: tuple[Token, ...]) -> None:
        if tokens and not text:
            self._textless.extend(tokens)
            return
        if tokens or self._textless:
            placed = [*self._textless, *tokens]
            raw = text.encode("utf-8", "surrogatepass")
            exact = len(placed) > 1 and b"".join(token.raw for token in placed) == raw
            offset = 0
            for token in placed:
                begin = len(raw[:offset].decode("utf-8", "ignore")) if exact else 0
                self._waiting.append((self._end + begin, token))
                offset += len(token.raw)
            self._textless.clear()
        self._end += len(text)

    def take(self, before: int) -> tuple[Token, ...]:
        """The tokens whose text begins before this position."""
        if not self._waiting:
            return ()
        taken = []
        while self._waiting and self._waiting[0][0] < before:
            taken.append(self._waiting.popleft()[1])
        return tuple(taken)


class Writer:
    """Writes the events of one choice. Whitespace next to a marker is dropped with the marker."""

    def __init__(
        self, choice: int, source: Source, new_call_id: Callable[[], str], *, trim: bool, parallel: bool
    ) -> None:
        self.tokens = TokenQueue()
        self.completed = 0
        self.calls = 0  # complete calls
        self.silent = False  # calls are parsed but not sent
        self.muted = False  # no more output is wanted
        self.reasoned = False  # a part of reasoning was started
        self.divided = False  # a marker, a call or another part came after the first text
        self._choice, self._source, self._new_call_id = choice, source, new_call_id
        self._trim, self._parallel = trim, parallel
        self._events: list[Event] = []
        self._texts: list[str] = []  # text of the pending delta
        self._tokens: list[Token] = []
        self._index = -1
        self._kind: PartKind | None = None  # of the open part
        self._space = ""  # trailing whitespace, dropped if a marker follows
        self._fresh = False  # right after a marker
        # Whitespace dropped before and after markers since the last part; `_gap` is None where there was no marker.
        self._gap: str | None = None
        self._after = ""
        self._written: set[PartKind] = set()  # kinds of the parts so far

    @property
    def begun(self) -> bool:
        """Whether any part was started."""
        return self._index >= 0

    @property
    def part_open(self) -> bool:
        return self._kind is not None

    def drain(self) -> list[Event]:
        self._flush()
        events, self._events = self._events, []
        return events

    def write(self, kind: PartKind, text: str) -> None:
        """Write more text or reasoning."""
        if self._trim:
            if self._fresh:
                begin = len(text) - len(text.lstrip(SPACE))
                self._after += text[:begin]
                text = text[begin:]
            text = self._space + text
            body = text.rstrip(SPACE)
            self._space = text[len(body) :]
        else:
            body = text
        if body and not self.muted:
            self._fresh = False
            if self._kind != kind:
                self._start(kind)
            self._delta(body, self._source.position - len(self._space))

    def marker(self) -> None:
        """A marker was read: end the open part."""
        self._divide()
        self.tokens.take(self._source.position)

    def _divide(self) -> None:
        self._end()
        self.divided = self.divided or self.begun
        self._gap = self._gap or self._after or self._space
        self._space, self._after, self._fresh = "", "", True

    def end_thought(self) -> None:
        """End the open text as reasoning, as its end marker now tells. Whitespace around the marker is kept, because
        the text may already have been sent."""
        self._release_space()
        self._end(thought=True)
        self.reasoned = self.divided = True
        self.tokens.take(self._source.position)

    def call(self, name: str, id: str | None, arguments: str, position: int) -> None:
        """Write a call that is complete. `arguments`: a JSON object, read from this position of the source on."""
        self._divide()
        self.tokens.take(position)
        if not (self.silent or self.muted):
            self._start("tool_call", id or self._new_call_id(), name)
            self._delta(arguments, self._source.position)
            self.calls += 1
            self.muted = not self._parallel
        self.marker()

    def finish(self) -> None:
        """End the stream: held whitespace is written, unless it follows a marker."""
        self._release_space()
        self._end()

    def _release_space(self) -> None:
        if self._space and not self._fresh and not self.muted:
            if self._kind is None:
                self._start("text")
            self._delta(self._space, self._source.position)
            self._space = ""

    def _start(self, kind: PartKind, id: str | None = None, name: str | None = None) -> None:
        self._end()
        self.divided = self.divided or self.begun or kind != "text"
        self.reasoned = self.reasoned or kind == "reasoning"
        self._index += 1
        self._kind = kind
        divided = kind in self._written and self._gap is not None
        gap = (self._gap or self._after or "\n") if divided else ""
        self._events.append(PartStarted(self._choice, self._index, kind, id, name, gap=gap))
        if kind != "tool_call":
            self._written.add(kind)
            self._gap = None

    def _delta(self, text: str, end: int) -> None:
        self._texts.append(text)
        self._tokens.extend(self.tokens.take(end))

    def _flush(self) -> None:
        if self._texts:
            text, tokens = "".join(self._texts), tuple(self._tokens)
            self._events.append(PartDelta(self._choice, self._index, text, tokens, self.completed))
            self._texts, self._tokens = [], []

    def _end(self, *, thought: bool = False) -> None:
        self._flush()
        if self._kind is not None:
            self._events.append(PartEnded(self._choice, self._index, thought))
            self._kind = None


def read_run(source: Source, begin: str, read: Callable[[], Reading[None]]) -> Reading[None]:
    """Read what begins with `begin`, one after the other."""
    yield from source.space()
    found: str | None = yield from source.expect(begin)
    while found:
        yield from read()
        yield from source.space()
        found = yield from source.literal(begin)


class Calls:
    """The context of a call reader: the source of text, the offered tools, and the call being read.

    A reader calls `start`, then `end` with the arguments. What it took since the last complete call becomes text if it
    raises `Malformed`.
    """

    def __init__(
        self,
        source: Source,
        writer: Writer,
        tools: tuple[Tool, ...],
        *,
        put_text: Put,
        object_text: Callable[[str], str | None],
        counts: Callable[[str], bool],
    ) -> None:
        """`put_text` writes what turns out to be no call; `object_text` makes one JSON object of arguments, or None;
        `counts` tells whether the marker that comes next is one, not text that spells it."""
        self.source = source
        self.tools = tools
        self.counts = counts
        self._writer, self._put_text, self._object_text = writer, put_text, object_text
        self._opener = ""  # markup before the call, already taken
        self._name = ""
        self._id: str | None = None
        self._offered = False  # the tool of the call
        self._arguments_at = 0  # position of the source where the arguments began
        self._refused = False  # the last call of the block became text

    def schema(self, name: str) -> dict[str, Any] | None:
        """The JSON schema of a tool's parameters; None if the tool was not offered."""
        for tool in self.tools:
            if tool.name == name:
                return tool.parameters or {}
        return None

    def open(self, opener: str) -> None:
        """Begin a block of calls after its opener, which is already taken."""
        self._opener, self._refused = opener, False
        self.source.remember()

    def start(self, name: str, id: str | None = None, *, listed: bool = False) -> None:
        """Begin a call. Raises `Malformed` if the tool was not offered, unless the call is `listed`: others may follow,
        so it is read to its end, and then becomes text."""
        self._offered = self.schema(name) is not None
        if not (self._offered or listed):
            raise Malformed
        self._name, self._id = name, id
        self._arguments_at = self.source.position

    def end(self, json: str) -> None:
        """End the call: send it, or make text of it if it is not a call of an offered tool with an object."""
        arguments = self._object_text(json) if self._offered else None
        if arguments is None:
            self._put_text(self._opener + self.source.recall())
        else:
            self._writer.call(self._name, self._id, arguments, self._arguments_at)
        self._opener, self._refused = "", arguments is None
        self.source.remember()

    def close(self) -> bool:
        """End the block; returns whether its last call was sent. What follows one that became text is text too."""
        rest = self.source.recall()
        if self._refused:
            self._put_text(rest)
        return not self._refused

    def give_up(self) -> tuple[str, str]:
        """End a malformed block. Returns what becomes text: the opener, and what was read since."""
        return self._opener, self.source.recall()
