"""The other ranks: an engine that repeats the steps of rank 0 and neither samples nor emits anything."""

from collections import deque
from collections.abc import Callable
from functools import cached_property, partial
from typing import TypeVar

import mlx.core as mx
from msgspec.structs import asdict

from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, FinishReason, TopToken
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.ranks import messages
from pippin.engines.language.ranks.leader import Build, state_of
from pippin.engines.language.sampling.sampler import BatchSampler, Masks, Sampled
from pippin.engines.language.step.decoder import SequenceDecoder
from pippin.engines.language.step.steering import Steering
from pippin.engines.language.text.tokenizer import Tokenizer

T = TypeVar("T")


class Astray(Exception):
    """This rank has diverged from rank 0: its results would be those of another model."""


class Hearing:
    """The messages of rank 0, in their order."""

    def __init__(self, link: messages.RankLink) -> None:
        self._link = link
        self._heard: deque[messages.Told] = deque()

    def next(self) -> messages.Told:
        """Wait for the next message."""
        while not self._heard:
            for payload in self._link.hear():
                self._heard.extend(messages.decode_told(payload))
        return self._heard.popleft()

    def expect(self, kind: type[T]) -> T:
        """Wait for the next message, which must be of this kind. Raises `Astray`."""
        message = self.next()
        if not isinstance(message, kind):
            raise Astray(f"rank 0 said {type(message).__name__} where this rank needs {kind.__name__}")
        return message


class HeardDecoder(SequenceDecoder):
    """A decoder that learns from rank 0 whether its choice goes on."""

    def __init__(self, hearing: Hearing, job: LanguageJob) -> None:
        # The base class is not initialised: it would read text, which only rank 0 does.
        self._hearing = hearing
        self.finished: FinishReason | None = "length" if job.max_tokens == 0 else None

    def accept(self, token: int, logprob: float | None = None, top: tuple[TopToken, ...] = ()) -> list[Event]:
        self.completion_tokens += 1
        match self._hearing.expect(messages.Verdict).outcome:
            case "failed":
                raise ServerError("internal", "Rank 0 has failed the request.")
            case "finished":
                self.finished = "stop"
            case "goes on":
                pass
        return []

    def close(self, reason: FinishReason) -> list[Event]:
        return []


class HeardSample(Sampled):
    """The tokens that rank 0 has drawn, waited for where they are needed: where host and device overlap, rank 0 may
    compute prompts before it reads them."""

    hear: Callable[[], mx.array]

    def __init__(self, hear: Callable[[], mx.array]) -> None:
        object.__setattr__(self, "hear", hear)

    @cached_property
    def tokens(self) -> mx.array:
        return self.hear()

    def arrays(self) -> list[mx.array]:
        return []


class HeardSampler(BatchSampler):
    """A sampler that returns the tokens that rank 0 has drawn."""

    def __init__(self, hearing: Hearing, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._hearing = hearing

    def sample(self, logits: mx.array, masks: Masks | None = None) -> Sampled:
        return HeardSample(partial(self._hear, logits.shape[0]))

    def _hear(self, rows: int) -> mx.array:
        tokens = self._hearing.expect(messages.Tokens).tokens
        if len(tokens) != rows:
            raise Astray(f"rank 0 drew {len(tokens)} tokens, and {rows} sequences run here")
        return mx.array(tokens, dtype=mx.int32)


class Follower:
    """Repeats the steps of rank 0 until rank 0 closes the model."""

    def __init__(self, link: messages.RankLink, build: Build) -> None:
        self._hearing = Hearing(link)
        self._step: messages.Step | None = None
        self.engine = build(
            Steering(
                now=self._begin_step,
                rests=False,
                budget=lambda _: self._hearing.expect(messages.Budget).tokens,
                decoder=lambda job, choice, tokenizer: HeardDecoder(self._hearing, job),
                sampler=lambda tokenizer, _: HeardSampler(self._hearing, tokenizer),
            )
        )

    def run(self) -> None:
        """Raises `Astray` if this rank has diverged from rank 0."""
        engine = self.engine
        while not isinstance(message := self._hearing.next(), messages.Close):
            match message:
                case messages.Take():
                    engine.submit(LanguageJob(accepted=Accepted(len(message.prompt)), **asdict(message)))
                case messages.Drop(id):
                    engine.cancel(id)
                case messages.Step():
                    self._step = message
                    engine.step()
                case messages.Clear(prefixes_only):
                    engine.clear_cache(prefixes_only=prefixes_only, disk=False)
                case messages.Adjust(options):
                    engine.reconfigure(options)
                case messages.Resize(shares):
                    engine.resize(shares)
                case _:
                    raise Astray(f"rank 0 said {type(message).__name__} between two steps")
        engine.close()

    def _begin_step(self) -> float:
        assert self._step is not None
        if (own := state_of(self.engine)) != self._step.state:
            raise Astray(f"rank 0 stands at {self._step.state}, this rank at {own}")
        return self._step.now
