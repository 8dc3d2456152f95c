"""What the host knows of one choice while it is generated: text, stops, limits, parts, grammar."""

import numpy as np

from pippin.core.events import Event, FinishReason, Token, TopToken
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.stand_in import OutputReader
from pippin.engines.language.stopping import StopFinder
from pippin.engines.language.tokenizer import Tokenizer


class RowDecoder:
    """Fed with every token of a choice in order. The engine adds `Finished` with usage and timings."""

    def __init__(self, job: LanguageJob, choice: int, tokenizer: Tokenizer) -> None:
        self.job = job
        self.choice = choice
        self.finished: FinishReason | None = "length" if job.max_tokens == 0 else None
        self.stop_sequence: str | None = None
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.logprob_sum = 0.0  # of all completion tokens that came with one
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer()
        self._stops = StopFinder(job.stops, include=job.request.include_stop)
        self._reader = OutputReader(choice=choice)
        self._matcher = job.grammar.matcher() if job.grammar is not None else None

    def accept(self, token: int, logprob: float | None = None, top: tuple[TopToken, ...] = ()) -> list[Event]:
        """Take one sampled (or forced) token. Nothing may be fed once `finished` is set."""
        self.completion_tokens += 1
        if token in self.job.eos and self.completion_tokens > self.job.request.min_tokens:
            self.finished = "stop"
            return []
        tokens = (Token(token, self._tokenizer.raw(token), logprob, top),) if logprob is not None else ()
        if self._matcher is not None:
            self._matcher.accept(token)
        text = self._stops.feed(self._detokenizer.add(token))
        events = self._reader.feed(text, tokens, self.completion_tokens)
        if self._stops.found is not None:
            self.finished, self.stop_sequence = "stop", self._stops.found
        elif self.completion_tokens >= self.job.max_tokens:
            self.finished = "length"
        return events

    def close(self, reason: FinishReason) -> list[Event]:
        """Release held-back text and end open parts. `reason` is `finished`, or "cancelled"."""
        events: list[Event] = []
        if self._stops.found is None:
            held = self._stops.feed(self._detokenizer.finish()) + self._stops.finish()
            events = self._reader.feed(held, (), self.completion_tokens) if held else []
        return events + self._reader.finish()

    @property
    def needs_mask(self) -> bool:
        """The next token must be masked, so every earlier token must have been accepted before it is sampled."""
        return self._matcher is not None

    @property
    def may_need_mask(self) -> bool:
        """Some later token may need a mask: such a row must not be sampled ahead of the host by more than one token
        when `needs_mask`, and the engine re-reads `needs_mask` and `forced` after every `accept`."""
        return self._matcher is not None

    def fill_mask(self, row: np.ndarray) -> None:
        """Write the bits of allowed tokens into `row`, int32 [ceil(vocab / 32)], bit 0 of word 0 for token 0."""
        assert self._matcher is not None
        self._matcher.fill(row)

    @property
    def forced(self) -> tuple[int, ...]:
        """Tokens that come next whatever the model says (the end of reasoning, its budget used up)."""
        return ()

    def allowed(self, tokens: list[int]) -> int:
        """How many of these proposals could be accepted one after the other, by grammar, budget and limits."""
        room = self.job.max_tokens - self.completion_tokens
        if self._matcher is not None:
            return min(self._matcher.allowed(tokens), room)
        return min(len(tokens), room)
