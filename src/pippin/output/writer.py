"""Drawing what was read as events: parts started, filled and ended, with the tokens whose text they hold."""

from collections import deque
from collections.abc import Callable

from pippin.core.events import Event, PartDelta, PartEnded, PartKind, PartStarted, Token
from pippin.output.source import SPACE, Source

NewCallId = Callable[[], str]


class TokenQueue:
    """Tokens waiting for their text to surface, each with the position where its text begins."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Token]] = deque()
        self._textless: list[Token] = []  # parts of a character whose text is still to come
        self._end = 0

    def push(self, text: str, tokens: tuple[Token, ...]) -> None:
        if tokens and not text:
            self._textless.extend(tokens)
            return
        if tokens or self._textless:
            self._place(text, [*self._textless, *tokens])
            self._textless.clear()
        self._end += len(text)

    def _place(self, text: str, tokens: list[Token]) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        exact = len(tokens) > 1 and b"".join(token.raw for token in tokens) == raw
        offset = 0
        for token in tokens:
            begin = len(raw[:offset].decode("utf-8", "ignore")) if exact else 0
            self._waiting.append((self._end + begin, token))
            offset += len(token.raw)

    def take(self, before: int) -> tuple[Token, ...]:
        """The tokens whose text begins before this position."""
        if not self._waiting:
            return ()
        taken = []
        while self._waiting and self._waiting[0][0] < before:
            taken.append(self._waiting.popleft()[1])
        return tuple(taken)


class Writer:
    """Events of one choice. White space next to a marker belongs to the marker, and is dropped with it."""

    def __init__(
        self, choice: int, source: Source, new_call_id: NewCallId, *, trim: bool, parallel: bool
    ) -> None:
        self.tokens = TokenQueue()
        self.completed = 0
        self.calls = 0  # complete
        self.committed = 0  # calls begun
        self.call_open = False
        self.given = 0  # position up to which an open call was given out
        self.silent = False  # calls are read and left out
        self.muted = False  # nothing more is wanted
        self.reasoned = False  # a part of reasoning was started
        self.divided = False  # a marker, a call or another part came after the first text
        self._choice, self._source, self._new_call_id = choice, source, new_call_id
        self._trim, self._parallel = trim, parallel
        self._events: list[Event] = []
        self._texts: list[str] = []  # of the delta under construction
        self._tokens: list[Token] = []
        self._index = -1
        self._kind: PartKind | None = None  # of the open part
        self._space = ""  # held back: dropped if a marker follows
        self._fresh = False  # right after a marker
        self._empty_call = True

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
        """More text or reasoning."""
        if self._trim:
            if self._fresh:
                text = text.lstrip(SPACE)
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
        """A marker was read: what was open is over."""
        self._end()
        self.divided = self.divided or self.begun
        self._space, self._fresh = "", True
        self.tokens.take(self._source.position)

    def end_thought(self) -> None:
        """The open text was reasoning, as its end says now. White space around that stays, for those who were sent the
        text already."""
        self._release_space()
        self._end(thought=True)
        self.reasoned = self.divided = True
        self.tokens.take(self._source.position)

    def start_call(self, name: str, id: str | None = None) -> None:
        """Commit to a call: from here on it can't become text any more."""
        self.marker()
        self.call_open, self._empty_call = True, True
        self.given = self._source.position
        self.committed += 1
        if not (self.silent or self.muted):
            self._start("tool_call", id or self._new_call_id(), name)

    def arguments(self, text: str) -> None:
        """More of the arguments' JSON text."""
        if text and self.call_open:
            self._empty_call = False
            self.given = self._source.position
            if not (self.silent or self.muted):
                self._delta(text, self._source.position)

    def end_call(self, *, complete: bool = True) -> None:
        """The call is over; without `complete` its arguments stay as the model left them."""
        if complete and self._empty_call:
            self.arguments("{}")
        self.call_open = False
        self.marker()
        self._source.remember()
        if complete and not (self.silent or self.muted):
            self.calls += 1
            self.muted = not self._parallel

    def finish(self) -> None:
        """The stream is over: held white space is released, unless it follows a marker."""
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
        self._events.append(PartStarted(self._choice, self._index, kind, id, name))

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
