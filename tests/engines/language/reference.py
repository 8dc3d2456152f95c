"""The judge of schedules: each answer beside a plain run of the model alone, one row at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache

from pippin.core.events import Event, Finished, PartDelta
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.sampling.sampler import BatchSampler, Masks, SampledToken, choice_seed
from pippin.engines.language.step.decoder import SequenceDecoder
from pippin.engines.language.text.tokenizer import Tokenizer
from tests.as_on_a_mac.mac import chosen_mac, tie
from tests.engines.language.roundings import by_steps, in_one_pass, own_logits

ROUNDING = 1e-3  # by which logits of two ways to compute the same may differ
NUDGES = 64  # times that a disputed draw is repeated with logits moved by as much as that


@dataclass
class Answer:
    """What came of one choice."""

    chosen: list[SampledToken] = field(default_factory=list)
    text: str = ""
    finished: Finished | None = None

    def add(self, event: Event) -> None:
        assert self.finished is None, "an event after the end"
        match event:
            case PartDelta(text=text):
                self.text += text
            case Finished():
                self.finished = event

    @property
    def tokens(self) -> list[int]:
        return [choice.token for choice in self.chosen]


@dataclass(frozen=True)
class Quantised:
    """How keys and values are kept in few bits."""

    bits: int
    group_size: int


@dataclass(frozen=True)
class Reference:
    model: nn.Module
    tokenizer: Tokenizer
    quantised: Quantised | None = None
    tolerance: float = ROUNDING
    some_quantised: Quantised | None = (
        None  # of some keys and values, by chance: it may be as without or as with all
    )

    def judge(self, job: LanguageJob, choice: int, answer: Answer) -> None:
        """Raises AssertionError unless every token, logprob and text is the model's own."""
        if not answer.chosen:
            return
        logits = self._logits(job.prompt, answer.tokens)
        if chosen_mac() is not None:
            self = replace(self, tolerance=max(self.tolerance, tie(logits)))
        decoder = SequenceDecoder(job, choice, self.tokenizer)
        events: list[Event] = []
        masks: dict[int, np.ndarray] = {}
        for place, token in enumerate(answer.tokens):
            assert decoder.finished is None, f"{decoder.finished} at token {place} of {len(answer.tokens)}"
            if decoder.needs_mask:
                masks[place] = np.zeros(-(-logits.shape[-1] // 32), np.int32)
                decoder.fill_mask(masks[place])
            events += decoder.accept(token)
        self.judge_tokens(job, choice, answer.tokens, logits, masks)
        self._judge_scores(job, answer, logits)
        self._judge_end(decoder, events, answer)

    def judge_tokens(
        self,
        job: LanguageJob,
        choice: int,
        answer: Sequence[int],
        logits: mx.array,
        masks: dict[int, np.ndarray],
    ) -> None:
        """`masks` has what a grammar allows, by place."""
        places = list(range(len(answer)))
        expected = self._draw(job, choice, answer, logits, places, masks)
        for place, (token, drawn) in enumerate(zip(answer, expected, strict=True)):
            if token != drawn:
                self._dispute(job, choice, answer, self._ways(job, answer, logits), place, masks)

    def _logits(self, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        """Of the model alone at each token of the answer, [tokens, vocabulary]."""
        if self.quantised is None:
            return in_one_pass(self.model, prompt, answer)
        return by_steps(self.model, prompt, answer, self._packed)

    def _ways(self, job: LanguageJob, answer: Sequence[int], logits: mx.array) -> Iterator[mx.array]:
        """These logits, and what else they could be: where experts are chosen, a little makes them quite different."""
        yield logits
        if self.some_quantised is not None:
            yield replace(self, quantised=self.some_quantised)._logits(job.prompt, answer)
        if chosen_mac() is None:
            return
        for keep in {self.quantised, self.some_quantised}:
            packed = replace(self, quantised=keep)._packed
            yield from own_logits(self.model, job.prompt, answer, packed)

    def _packed(self, layer: Any) -> Any:
        """What is kept of a layer between two steps."""
        if type(layer) is not KVCache or self.quantised is None or layer.keys is None:
            return layer
        return layer.to_quantized(group_size=self.quantised.group_size, bits=self.quantised.bits)

    def _draw(
        self,
        job: LanguageJob,
        choice: int,
        answer: Sequence[int],
        logits: mx.array,
        places: Sequence[int],
        masks: dict[int, np.ndarray],
    ) -> list[int]:
        """What the row draws at these places by itself, given the tokens before each; `logits` has a row for each."""
        sampler = BatchSampler(self.tokenizer)
        for place in places:
            sampler.join(
                job.request.sampling,
                seed=choice_seed(job.seed, choice),
                prompt=[*job.prompt, *answer[:place]],
                logprobs=None,
                generated=place,
            )
        rows = [row for row, place in enumerate(places) if place in masks]
        masked = Masks(rows, np.stack([masks[places[row]] for row in rows])) if rows else None
        found: list[int] = np.array(sampler.sample(logits, masked).tokens).tolist()
        return found

    def _dispute(
        self,
        job: LanguageJob,
        choice: int,
        answer: Sequence[int],
        ways: Iterable[mx.array],
        place: int,
        masks: dict[int, np.ndarray],
    ) -> None:
        """Another token than the likeliest of each of these logits [tokens, vocabulary] may only stand where rounding
        decides."""
        drawn: list[int] = []
        for logits in ways:
            nudges = mx.random.uniform(-1, 1, (NUDGES, logits.shape[-1]), key=mx.random.key(place))
            moved = logits[place] + nudges * self.tolerance
            drawn += self._draw(job, choice, answer, moved, [place] * NUDGES, masks)
            if answer[place] in drawn:
                return
        raise AssertionError(
            f"{job.id}/{choice}: token {place} of {len(answer)} is {answer[place]}, and alone "
            f"{max(set(drawn), key=drawn.count)} ({job.request.sampling}, {len(job.prompt)} prompt tokens)"
        )

    def _judge_scores(self, job: LanguageJob, answer: Answer, logits: mx.array) -> None:
        wanted = job.request.logprobs
        if wanted is None:
            return
        assert all(len(choice.top) == wanted for choice in answer.chosen)
        told = np.array(
            [[choice.logprob, *(each.logprob for each in choice.top)] for choice in answer.chosen], np.float64
        )
        open_places = np.ones(len(told), bool)
        for each in self._ways(job, answer.tokens, logits):
            logprobs = np.array(each - mx.logsumexp(each, axis=-1, keepdims=True))
            chosen = np.take_along_axis(logprobs, np.array(answer.tokens)[:, None], axis=-1)
            due = np.concatenate([chosen, np.sort(logprobs, axis=-1)[:, ::-1][:, :wanted]], axis=-1)
            open_places &= ~(np.abs(told - due) < self.tolerance).all(axis=-1)
            if not open_places.any():
                return
        raise AssertionError(f"{job.id}: logprobs at {np.flatnonzero(open_places)} are not the model's own")

    def _judge_end(self, decoder: SequenceDecoder, events: list[Event], answer: Answer) -> None:
        if answer.finished is None:  # cancelled
            assert decoder.finished is None or not answer.text
            return
        events += decoder.close(decoder.finished or "length")
        text = "".join(event.text for event in events if isinstance(event, PartDelta))
        assert answer.text == text
        assert answer.finished.usage.completion_tokens == len(answer.tokens)
        assert answer.finished.usage.reasoning_tokens == decoder.reasoning_tokens
        if decoder.finished is not None:
            assert answer.finished.reason == decoder.finished
        else:
            assert answer.finished.reason == "length"
