"""Host-side state of one choice while it is generated: its text, limits and grammar."""

import logging
from itertools import takewhile
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pippin.core.errors import ServerError
from pippin.core.events import Event, Token, TopToken
from pippin.engines.language.constraints.grammar import forced_by
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.output.reader import ChoiceReader, Formats, Markup, Thinking

logger = logging.getLogger(__name__)


class SequenceDecoder(ChoiceReader):
    """Takes every token of a choice in order. The engine adds `Finished`, with usage and timings."""

    # What the engine asks of every decoder, also of one that reads no text (`ranks/follower.py`).
    needs_mask = False  # before the next token is drawn
    forced: tuple[int, ...] = ()
    """Tokens that must come next whatever the model says: the end of reasoning whose budget is used up, or those that
    the grammar leaves no choice about."""
    forced_tokens = 0  # that have come so

    def __init__(self, job: LanguageJob, choice: int, tokenizer: Tokenizer) -> None:
        self.job = job
        self.choice = choice
        self.finished = "length" if job.max_tokens == 0 else None
        self._tokenizer = tokenizer
        markers = _markers(job)
        self._detokenizer = tokenizer.detokenizer(markers, at_start=not job.raw_prompt)
        super().__init__(
            choice,
            job.request,
            Formats(tools=job.tool_format, reasoning=job.reasoning_format),
            tools=job.tools,
            stops=job.stops,
            thinking=_thinking(job),
            markup=Markup(tokens=tokenizer.added_in(markers), grammar=_held_to(job)),
        )
        self._matcher = job.grammar.matcher() if job.grammar is not None else None
        self._blank = True  # only whitespace so far
        self._opening: tuple[int, ...] = ()  # the tokens still to come of those that open reasoning
        self._by_grammar = False  # it was the grammar that forced the last tokens
        # Whether anything but the model ever decides about tokens.
        self._steered = self._matcher is not None or job.thinking_budget is not None
        self._steered |= self._too_short or bool(tokenizer.asked.begin_suppress_tokens)
        self._steer()

    def _spell(self, tokens: list[int]) -> str:
        return b"".join(map(self._tokenizer.raw, tokens)).decode(errors="replace")

    def accept(self, token: int, logprob: float | None = None, top: tuple[TopToken, ...] = ()) -> list[Event]:
        """Take one sampled or forced token; the events of the last one end all parts. Must not be called once
        `finished` is set. Raises `ServerError` if the grammar cannot go on, which ends the request."""
        self._count(token)
        if token in self.job.eos and not self._ends_thinking(token):
            # Where a grammar can't go on, its masks allow nothing else.
            if self._matcher is not None and self._matcher.is_error():
                self._advance(token)
            self.finished = "stop"
            return self.close("stop")
        if self.forced:
            self.forced_tokens += token == self.forced[0]
            self.forced = self.forced[1:] if token == self.forced[0] else ()
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
        grammar_over = constrained and self._matcher is not None and self._matcher.is_stopped()
        full = self.completion_tokens >= self.job.max_tokens
        self._settle("stop" if grammar_over else "length" if full else None)
        if self.finished is None and self._steered:
            self._steer()
        return events if self.finished is None else events + self.close(self.finished)

    def _rest(self) -> str:
        return self._detokenizer.finish()

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
        added = self._tokenizer.pieces.added.get(token)
        as_text = constrained and self.job.grammar is not None and token not in self.job.grammar.special
        if added is not None and text.endswith(added.content) and not as_text:
            self.reader.added_token(self._length + len(text) - len(added.content))
        return text

    def _steer(self) -> None:
        """Decide what is to be known of the next token before it is drawn."""
        self._force()
        self.needs_mask = bool(self.forced) or self._constrained or bool(self._left_out)

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
