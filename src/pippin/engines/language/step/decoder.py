"""Host-side state of one choice while it is generated: text, stop strings, limits, parts, grammar.

Stop strings are found across token boundaries, and text that may begin one is held back.
"""

import logging
from collections import deque
from itertools import takewhile
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pippin.core.errors import ServerError
from pippin.core.events import Event, FinishReason, Token, TopToken
from pippin.engines.language.constraints.grammar import forced_by
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.output.checking import LOOK_EVERY, AnswerCheck, Loops
from pippin.output.reader import Formats, Markup, OutputReader, Thinking, ToolUse

Shown = list[tuple[str, tuple[Token, ...]]]
"""Pieces of text that may be sent now, each with the tokens that begin in it."""


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
        self._shown = 0  # characters
        self._waiting: deque[tuple[int, Token]] = deque()  # each with the character at which it begins
        self.found: str | None = None

    def feed(self, text: str, tokens: tuple[Token, ...] = ()) -> Shown:
        """Add text and the tokens that begin with it; return what may be sent now."""
        end = self._shown + len(self._held)
        for token in tokens:
            self._waiting.append((end, token))
        if not self._stops:
            return self._release(text)
        self._held += text
        matches = [
            (start + len(stop), start, stop) for stop in self._stops if (start := self._held.find(stop)) >= 0
        ]
        if matches:
            _, begin, self.found = min(matches)
            shown = self._held[: begin + (len(self.found) if self._include else 0)]
            self._held = ""
            released = self._release(shown)
            self._waiting.clear()
            return released
        most = min(self._longest - 1, len(self._held))
        keep = next((size for size in range(most, 0, -1) if self._held[-size:] in self._begun), 0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return self._release(shown)

    def finish(self) -> Shown:
        """End the stream, and return the text that was held back, which is no stop string after all."""
        held, self._held = self._held, ""
        released = self._release(held)
        # The bytes of these tokens never became a character.
        if self._waiting:
            released.append(("", tuple(token for _, token in self._waiting)))
            self._waiting.clear()
        return released

    def _release(self, text: str) -> Shown:
        begin, self._shown = self._shown, self._shown + len(text)
        if not self._waiting:
            return [(text, ())] if text else []
        pieces: Shown = []
        cut = begin
        while self._waiting and self._waiting[0][0] < self._shown:
            start, token = self._waiting.popleft()
            if start > cut:
                pieces.append((text[cut - begin : start - begin], ()))
                cut = start
            end = min(self._waiting[0][0], self._shown) if self._waiting else self._shown
            pieces.append((text[cut - begin : end - begin], (token,)))
            cut = end
        if cut < self._shown:
            pieces.append((text[cut - begin :], ()))
        return pieces


logger = logging.getLogger(__name__)


class SequenceDecoder:
    """Takes every token of a choice in order. The engine adds `Finished`, with usage and timings."""

    # What the engine asks of every decoder, also of one that reads no text (`ranks/follower.py`).
    stop_sequence: str | None = None
    completion_tokens = 0
    reasoning_tokens = 0
    warnings: tuple[str, ...] = ()  # what the choice does not keep to, once it has ended
    needs_mask = False  # before the next token is drawn
    forced: tuple[int, ...] = ()
    """Tokens that must come next whatever the model says: the end of reasoning whose budget is used up, or those that
    the grammar leaves no choice about."""
    forced_tokens = 0  # that have come so

    def __init__(self, job: LanguageJob, choice: int, tokenizer: Tokenizer) -> None:
        self.job = job
        self.choice = choice
        self.finished: FinishReason | None = "length" if job.max_tokens == 0 else None
        request = job.request
        self._closed = False
        self._tokenizer = tokenizer
        markers = _markers(job)
        self._detokenizer = tokenizer.detokenizer(markers, at_start=not job.raw_prompt)
        self._length = 0  # characters of text so far
        self._stops = StopFinder(job.stops, include=request.include_stop)
        tools = job.tools if request.read_calls else ()
        self._check = AnswerCheck(request.output_format, tools)
        self.reader = OutputReader(
            choice,
            Formats(tools=job.tool_format, reasoning=job.reasoning_format),
            ToolUse(tools=tools, choice=request.tool_choice, parallel=request.parallel_tool_calls),
            thinking=_thinking(job),
            markup=Markup(tokens=tokenizer.added_in(markers), grammar=_held_to(job)),
        )
        self._loops = Loops(request)
        # Who is told of all events: of most choices, nobody.
        self._told = [self._check.see] if request.output_format or tools else []
        self._told += [self._loops.read] if self._loops.watches and tools else []
        self._tokens: list[int] = []  # where loops are watched for
        self._matcher = job.grammar.matcher() if job.grammar is not None else None
        self._blank = True  # only whitespace so far
        self._opening: tuple[int, ...] = ()  # the tokens still to come of those that open reasoning
        self._by_grammar = False  # it was the grammar that forced the last tokens
        self._too_short = request.min_tokens > 0
        # Whether anything but the model ever decides about tokens.
        self._steered = self._matcher is not None or job.thinking_budget is not None
        self._steered |= self._too_short or bool(tokenizer.asked.begin_suppress_tokens)
        self._steer()

    def accept(self, token: int, logprob: float | None = None, top: tuple[TopToken, ...] = ()) -> list[Event]:
        """Take one sampled or forced token; the events of the last one end all parts. Must not be called once
        `finished` is set. Raises `ServerError` if the grammar cannot go on, which ends the request."""
        self.completion_tokens += 1
        self._too_short = self._too_short and self.completion_tokens < self.job.request.min_tokens
        if token in self.job.eos and not self._ends_thinking(token):
            # Where a grammar can't go on, its masks allow nothing else.
            if self._matcher is not None and self._matcher.is_error():
                self._advance(token)
            self.finished = "stop"
            return self.close("stop")
        if self.forced:
            self.forced_tokens += token == self.forced[0]
            self.forced = self.forced[1:] if token == self.forced[0] else ()
        if self._loops.watches:
            self._tokens.append(token)
        thinking = self.reader.thinking
        constrained = self._steered and self._constrained
        opens = constrained and self._opens_thinking(token)
        constrained = constrained and not opens
        if constrained:
            self._advance(token)
        self._blank = self._blank and not self._tokenizer.raw(token).strip()
        tokens = () if logprob is None else (Token(token, self._tokenizer.raw(token), logprob, top),)
        events = self._show(self._text_of(token, constrained=constrained), tokens, markup=opens)
        if thinking or self.reader.thinking:
            self.reasoning_tokens += 1
        self._settle(grammar_over=constrained and self._matcher is not None and self._matcher.is_stopped())
        return events if self.finished is None else events + self.close(self.finished)

    def close(self, reason: FinishReason) -> list[Event]:
        """Release held-back text and end open parts, unless the last token has done so. `reason` is `finished`, or what
        ended the sequence from outside."""
        if self._closed:
            return []
        self._closed = True
        events: list[Event] = []
        if self._stops.found is None:
            events = self._show(self._detokenizer.finish(), ()) + self._read(self._stops.finish())
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

    def fill_mask(self, row: NDArray[np.int32]) -> None:
        """Write the bits of allowed tokens into `row`, int32 [ceil(vocab / 32)], bit 0 of word 0 for token 0."""
        if self.forced:
            row[:] = 0
            _set(row, self.forced[0])
            return
        if self._constrained and self._matcher is not None and self.job.grammar is not None:
            self.job.grammar.fill(self._matcher, row)
            if self._may_think and self.job.thinking_start:
                _set(row, self.job.thinking_start[0])
        else:
            row[:] = -1
        if left_out := self._left_out:
            allowed = row.copy()
            bits = row.view(np.uint32)
            for token in left_out:
                if 0 <= token // 32 < row.size:
                    bits[token // 32] &= np.uint32(~(1 << (token % 32)) & 0xFFFFFFFF)
            if not row.any():  # the grammar allows only these
                row[:] = allowed

    @property
    def certain(self) -> tuple[int, ...]:
        """The tokens that the grammar forces, as far as they may be computed in one pass: up to where rules change."""
        if not self.forced or not self._by_grammar or self._too_short:
            return ()
        return self.forced[: self.job.max_tokens - self.completion_tokens]

    def allowed(self, tokens: list[int]) -> int:
        """How many of these proposed tokens could be accepted in a row, by grammar, budget and limits: none where the
        next one is forced. The run stops wherever the rules change: where reasoning ends or a budget is reached."""
        room = self.job.max_tokens - self.completion_tokens
        if self.forced or self._left_out or room <= 0:
            return 0
        proposals = tokens[:room]
        if self.reader.thinking:
            if self.job.thinking_budget is not None:
                proposals = proposals[: max(self.job.thinking_budget - self.reasoning_tokens, 0)]
            return len(proposals) if self._matcher is None else 0
        if self._matcher is None:
            return len(proposals)
        if self._may_think:
            return 0
        # A matcher that is asked about a row of the model without a token admits nothing from then on.
        size = self._tokenizer.size
        known = next((place for place, token in enumerate(proposals) if token >= size), len(proposals))
        let_through: int = self._matcher.validate_tokens(proposals[:known])
        return let_through

    def masks_ahead(self, tokens: list[int], rows: NDArray[np.int32]) -> None:
        """Fill one mask for each place of a run that is `certain`, or that `allowed` let through, `rows`
        [len(tokens) + 1, words]: after none of `tokens`, after the first, and so on. The grammar's state is left
        unchanged."""
        self.fill_mask(rows[0])
        if self._matcher is None or self.job.grammar is None:
            rows[1:] = -1
            return
        taken = 0
        for place, token in enumerate(tokens, start=1):
            if not self._matcher.consume_token(token):
                break
            taken += 1
            if place < len(self.forced):
                rows[place] = 0
                _set(rows[place], self.forced[place])
            else:
                self.job.grammar.fill(self._matcher, rows[place])
        self._matcher.rollback(taken)

    @property
    def _constrained(self) -> bool:
        return self._matcher is not None and (self.job.grammar_has_reasoning or not self.reader.thinking)

    @property
    def _may_think(self) -> bool:
        """Whether the model may still open reasoning by itself, at the beginning of its answer."""
        return self.job.may_think and self._blank

    @property
    def _left_out(self) -> tuple[int, ...]:
        """The tokens that may not come next: ends where the sequence may not end, and those that begin no answer."""
        first = () if self.completion_tokens else self._tokenizer.asked.begin_suppress_tokens or ()
        # If the sequence ended while it reasons freely, the answer that a grammar holds to its form would be missing.
        owes = self._matcher is not None and self.reader.thinking and not self.job.grammar_has_reasoning
        if not self._too_short and not owes:
            return first
        return (*first, *(token for token in self.job.eos if not self._ends_thinking(token)))

    def _opens_thinking(self, token: int) -> bool:
        """Whether the token opens reasoning, which the grammar does not know. The first such token forces the rest."""
        start = self.job.thinking_start
        if self._opening:
            self._opening = self._opening[1:]
            return True
        if (
            not self._may_think
            or start[:1] != (token,)
            or (self._matcher and self._matcher.validate_tokens([token]))
        ):
            return False
        self.forced = self._opening = start[1:]
        return True

    def _ends_thinking(self, token: int) -> bool:
        """Whether the end of the turn ends only the reasoning: some families end each message of a turn with that
        token."""
        return self.reader.thinking and self.job.thinking_end == (token,)

    def _advance(self, token: int) -> None:
        matcher = self._matcher
        if matcher is None or (matcher.consume_token(token) and not matcher.is_error()):
            return
        logger.warning("grammar of request %s stopped: %s", self.job.id, matcher.get_error())
        raise ServerError(
            "invalid_request",
            "The grammar or schema admits nothing behind what was generated, or became too complex. Make it simpler.",
            "tools" if self.job.request.output_format is None else "response_format",
        )

    def _text_of(self, token: int, *, constrained: bool) -> str:
        """The text that is complete with this token. The reader is told of added tokens, by which it recognises
        markers.

        A token that the grammar takes as text is text, whatever it looks like.
        """
        text = self._detokenizer.add(token)
        self._length += len(text)
        added = self._tokenizer.pieces.added.get(token)
        as_text = constrained and self.job.grammar is not None and token not in self.job.grammar.special
        if added is not None and text.endswith(added.content) and not as_text:
            self.reader.added_token(self._length - len(added.content))
        return text

    def _show(self, text: str, tokens: tuple[Token, ...], *, markup: bool = False) -> list[Event]:
        """Read text. Stop strings are looked for only in the answer: not in reasoning, nor in `markup` that opens
        it."""
        if self.reader.thinking or self._too_short or markup:
            return self._read(self._stops.finish()) + self._read([(text, tokens)])
        return self._read(self._stops.feed(text, tokens))

    def _read(self, shown: Shown) -> list[Event]:
        events: list[Event] = []
        for text, tokens in shown:
            if text or tokens:
                events += self.reader.feed(text, tokens, self.completion_tokens)
        for told in self._told:
            told(events)
        return events

    def _settle(self, *, grammar_over: bool) -> None:
        """Decide whether this was the last token, and if not, whether there is a choice about the next."""
        if self._stops.found is not None:
            found = self._stops.found
            self.finished, self.stop_sequence = "stop", found if found in self.job.request.stop else None
        elif self.reader.done or grammar_over:
            self.finished = "stop"
        elif self.completion_tokens >= self.job.max_tokens:
            self.finished = "length"
        elif self._loops.watches and not self._too_short:
            if len(self._tokens) % LOOK_EVERY == 0:
                self._loops.look(self._tokens, self._raw)
            if self._loops.over:  # an answer that is not complete, except for its calls
                self.finished = "stop" if self.reader.calls else "length"
        if self.finished is None and self._steered:
            self._steer()

    def _steer(self) -> None:
        """Decide what is to be known of the next token before it is drawn."""
        self._force()
        self.needs_mask = bool(self.forced) or self._constrained or bool(self._left_out)

    def _raw(self, tokens: list[int]) -> str:
        return b"".join(map(self._tokenizer.raw, tokens)).decode(errors="replace")

    def _force(self) -> None:
        """Decide whether there is no choice about the next tokens."""
        if self.forced:
            return
        self._by_grammar = False
        job, matcher, end = self.job, self._matcher, self.job.thinking_end
        if self.reader.thinking:
            if job.thinking_budget is None or not end or self.reasoning_tokens < job.thinking_budget:
                return
            in_character = job.grammar_has_reasoning and matcher and matcher.validate_tokens([end[0]]) == 0
            self.forced = () if in_character else end
        elif matcher is not None and not self._may_think:
            marks = {*job.thinking_start, *end}
            self.forced = tuple(takewhile(lambda token: token not in marks, forced_by(matcher)))
            self._by_grammar = bool(self.forced)


def _set(row: NDArray[np.int32], token: int) -> None:
    row.view(np.uint32)[token // 32] |= np.uint32(1 << (token % 32))


def _thinking(job: LanguageJob) -> Thinking:
    """Where reasoning may be when the answer begins. With a grammar, the model may not begin it unmarked."""
    if job.thinking_open:
        return "begun"
    return "possible" if job.may_think and job.grammar is None else "marked"


def _held_to(job: LanguageJob) -> Literal["none", "calls", "answer"]:
    """What the grammar of a job describes."""
    if job.grammar is None:
        return "none"
    must_call = job.request.tool_choice.mode == "required" and job.tool_format is not None and job.tools
    return "calls" if must_call or job.request.output_format is None else "answer"


def _markers(job: LanguageJob) -> frozenset[str]:
    """Special tokens that the reader must see, because formats are written with them."""
    tool = job.tool_format.markers if job.tool_format and job.tools else ()
    reasoning = job.reasoning_format.markers if job.reasoning_format else ()
    return frozenset((*tool, *reasoning))
