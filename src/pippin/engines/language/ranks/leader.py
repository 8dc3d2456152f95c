"""Rank 0: an engine whose steps the other ranks repeat."""

from collections.abc import Callable
from typing import Any, Final

from pippin.core.errors import ServerError
from pippin.core.events import Event, TopToken
from pippin.core.models import EngineStats
from pippin.core.requests import GenerationRequest
from pippin.engines.base import Emission
from pippin.engines.device import MemoryShares
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.ranks import messages
from pippin.engines.language.sampling.sampler import BatchSampler, Sampled, SampledToken
from pippin.engines.language.step.decoder import SequenceDecoder
from pippin.engines.language.step.engine import LanguageEngine
from pippin.engines.language.step.steering import Steering
from pippin.engines.language.text.tokenizer import Tokenizer

Build = Callable[[Steering], LanguageEngine]
"""Makes the engine of a rank."""

DECIDING: Final = ("n", "priority", "account", "timeout", "echo", "logprobs", "prompt_logprobs")
"""The fields of a request that decide what is computed."""


class Telling:
    """Messages to the other ranks, buffered until a rank may wait for them."""

    def __init__(self, link: messages.RankLink) -> None:
        self._link = link
        self._gathered: list[messages.Told] = []

    def add(self, message: messages.Told) -> None:
        self._gathered.append(message)

    def send(self, message: messages.Told) -> None:
        """Send a message that other ranks wait for, after all buffered ones."""
        self._gathered.append(message)
        gathered, self._gathered = self._gathered, []
        self._link.tell(messages.encode(gathered))


def state_of(engine: LanguageEngine) -> tuple[int, ...]:
    """Counts that are equal in engines that have taken the same steps."""
    scheduler, prefixes = engine.scheduler, engine.prefixes
    lengths = sum(each.length for each in scheduler.running)
    computed = sum(each.computed for each in scheduler.prefilling)
    held = prefixes.stats().entries
    counts = len(scheduler.waiting), len(scheduler.prefilling), len(scheduler.running)
    return *counts, lengths, computed, held


class ToldDecoder(SequenceDecoder):
    """A decoder that tells the other ranks the outcome of each token."""

    def __init__(self, telling: Telling, job: LanguageJob, choice: int, tokenizer: Tokenizer) -> None:
        super().__init__(job, choice, tokenizer)
        self._telling = telling

    def accept(self, token: int, logprob: float | None = None, top: tuple[TopToken, ...] = ()) -> list[Event]:
        try:
            events = super().accept(token, logprob, top)
        except ServerError:
            self._telling.add(messages.Verdict("failed"))
            raise
        self._telling.add(messages.Verdict("goes on" if self.finished is None else "finished"))
        return events


class ToldSampler(BatchSampler):
    """A sampler that tells the other ranks the tokens of a draw as soon as they are read."""

    def __init__(self, telling: Telling, tokenizer: Tokenizer, sorts_slowly: bool) -> None:
        super().__init__(tokenizer, sorts_slowly)
        self._telling = telling

    def read(self, drawn: Sampled) -> list[SampledToken]:
        chosen = super().read(drawn)
        self._telling.send(messages.Tokens([each.token for each in chosen]))
        return chosen


class LeadingEngine:
    """An `Engine` that tells the other ranks all that they need to take the same steps."""

    def __init__(self, link: messages.RankLink, build: Build) -> None:
        self._telling = Telling(link)
        self._own = self._together = MemoryShares(sequences=1, prefixes=1)
        self.engine = build(
            Steering(
                now=self._begin_step,
                rests=False,
                budget=self._budget,
                decoder=lambda job, choice, tokenizer: ToldDecoder(self._telling, job, choice, tokenizer),
                sampler=lambda tokenizer, sorts: ToldSampler(self._telling, tokenizer, sorts),
            )
        )

    def _begin_step(self) -> float:
        now = Steering().now()
        self._telling.send(messages.Step(now, state_of(self.engine)))
        return now

    def _budget(self, tokens: int) -> int:
        self._telling.send(messages.Budget(tokens))
        return tokens

    def submit(self, job: LanguageJob) -> None:
        self.engine.submit(job)  # the other ranks are not told of a job that this refuses
        asked = job.request
        request = GenerationRequest(model="", **{name: getattr(asked, name) for name in DECIDING})
        fields = (name for name in messages.Take.__struct_fields__ if name != "request")
        self._telling.add(messages.Take(request=request, **{name: getattr(job, name) for name in fields}))

    def cancel(self, id: str) -> None:
        self.engine.cancel(id)
        self._telling.add(messages.Drop(id))

    def step(self) -> list[Emission]:
        return self.engine.step()

    @property
    def busy(self) -> bool:
        return self.engine.busy

    def close(self) -> None:
        self._telling.send(messages.Close())
        self.engine.close()

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        self.engine.clear_cache(prefixes_only=prefixes_only, disk=disk)
        self._telling.send(messages.Clear(prefixes_only))

    def agreed(self, own: MemoryShares, together: MemoryShares) -> None:
        """Note that this rank could give `own` and that the ranks agreed on `together`."""
        self._own, self._together = own, together

    def reconfigure(self, options: dict[str, Any]) -> None:
        """Like a single engine's; a new share of memory changes the shares of all ranks in proportion."""
        others = {name: value for name, value in options.items() if name != "memory_bytes"}
        if others:
            self.engine.reconfigure(others)
            self._telling.add(messages.Adjust(others))
        if len(others) < len(options):
            given, own, together = self.engine.share(options["memory_bytes"]), self._own, self._together
            shares = MemoryShares(
                sequences=given.sequences * together.sequences // max(1, own.sequences),
                prefixes=given.prefixes * together.prefixes // max(1, own.prefixes),
            )
            self.engine.resize(shares)
            self._telling.send(messages.Resize(shares))
