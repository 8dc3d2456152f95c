"""One request that a worker has accepted: its events, the best of its choices, its end, and what is given back then."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Protocol

import msgspec

from pippin.core.completion import Completion
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import (
    Accepted,
    Event,
    Failed,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    Usage,
    merged,
)
from pippin.core.models import ModelInfo
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Task
from pippin.runtime.pool.pool import Lease
from pippin.runtime.workers.link import Mailbox


class AnyRun(Protocol):
    """What an answer needs of a run, be it one run or several in a row."""

    accepted: Accepted | None

    async def take(self) -> list[Event]: ...

    def fail(self, error: ErrorReport) -> None: ...

    async def aclose(self) -> None: ...


class Starter(Protocol):
    """Whatever starts tasks as `Service.start` does."""

    async def start(self, task: Task, *, model: str, id: str, client: str | None = None) -> AnyRun: ...


class Run:
    """A request that its worker has accepted. Leaving it is the only cancel: `aclose`, or the end of `async with`."""

    def __init__(
        self,
        id: str,
        lease: Lease,
        mailbox: Mailbox,
        request: GenerationRequest | None,
        on_close: Callable[["Run"], None],
    ) -> None:
        """`request`: a generation as the client asked for it; None for other tasks."""
        self.id = id
        self.accepted: Accepted | None = None
        self._model = lease.worker.info
        self._lease = lease
        self._mailbox = mailbox
        self._request = request
        self._best_of = request if request is not None and (request.best_of or 1) > request.n else None
        self._on_close = on_close
        self._first: list[Event] = []
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def model(self) -> ModelInfo:
        """The model that answers, as its worker describes it."""
        return self._model

    async def events(self) -> AsyncIterator[Event]:
        """The events after `Accepted`. The last is terminal (a generation's is the last `Finished`);
        `Failed` is such an event too, never raised. A slow reader finds adjacent deltas joined."""
        while batch := await self.take():
            for event in batch:
                yield event

    async def take(self) -> list[Event]:
        """All events that have come since the last call, waiting for at least one; empty after the end."""
        if self._best_of is not None:
            return best_choices(await self._take_all(), self._best_of)
        if self._first:
            return self._taken_first()
        return await self._mailbox.take()

    async def collect(self) -> Completion:
        """The whole answer of a generation. Raises `ServerError` where it fails."""
        completion = Completion(accepted=self.accepted)
        events = await self._take_all()
        for event in best_choices(events, self._best_of) if self._best_of else events:
            completion.add(event)
        return completion

    async def aclose(self) -> None:
        """Give the model back; what still runs in the worker is cancelled."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._lease.worker.cancel(self.id)
        self._lease.release(None if self._request is None else self._request.keep_alive)
        self._on_close(self)

    async def __aenter__(self) -> "Run":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # For the service

    async def accept(self) -> None:
        """Wait for the worker's first event: a refusal is raised, `Accepted` kept, the rest left to the reader."""
        batch = await self._mailbox.take()
        match batch[0]:
            case Failed(error):
                raise ServerError.of(error)
            case Accepted() as accepted:
                self.accepted = accepted
                batch = batch[1:]
        self._first = batch

    def limit(self, seconds: float) -> None:
        """Fail the run if it has not ended in `seconds` from now."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def fail(self, error: ErrorReport) -> None:
        """End the run from outside, with an error."""
        self._lease.worker.cancel(self.id)
        self._mailbox.fail(error)

    def cut(self) -> None:
        """End the run from outside: what a generation has said so far is its answer."""
        self._lease.worker.cancel(self.id)
        if self._request is not None and self.accepted is not None:
            self._mailbox.cut(self.accepted.prompt_tokens)
        else:
            self._mailbox.fail(ErrorReport(kind="cancelled", message="The request was cancelled."))

    def _time_out(self) -> None:
        self.fail(ErrorReport(kind="timeout", message="The request took longer than its time limit."))

    async def _take_all(self) -> list[Event]:
        """Everything up to the end; a failure alone stands for all."""
        events = self._taken_first() + await self._mailbox.take_all()
        return events[-1:] if events and isinstance(events[-1], Failed) else merged(events)

    def _taken_first(self) -> list[Event]:
        first, self._first = self._first, []
        return first


def widened(request: GenerationRequest) -> GenerationRequest:
    """The request that the engine runs: all candidates, with the log probabilities that judge them."""
    if request.best_of is None or request.best_of <= request.n:
        return msgspec.structs.replace(request, best_of=None)
    logprobs = 0 if request.logprobs is None else request.logprobs
    return msgspec.structs.replace(request, n=request.best_of, best_of=None, logprobs=logprobs)


def best_choices(events: list[Event], request: GenerationRequest) -> list[Event]:
    """The events of the `request.n` best candidates, best first. All other events stay in front.

    Every candidate was computed and is counted: the best one's usage bears those that are left out.
    """
    means = _mean_logprobs(events)
    ranking = sorted(means, key=lambda choice: (-means[choice], choice))[: request.n]
    number = {choice: rank for rank, choice in enumerate(ranking)}
    kept: dict[int, list[Event]] = {rank: [] for rank in range(len(ranking))}
    rest: list[Event] = []
    left_out = [event.usage for event in events if isinstance(event, Finished) and event.choice not in number]
    for event in events:
        match event:
            case PartStarted(choice) | PartDelta(choice) | PartEnded(choice) | Finished(choice):
                if choice in number:
                    kept[number[choice]].append(_renumbered(event, number[choice], request))
            case _:
                rest.append(event)
    if kept and isinstance(last := kept[0][-1], Finished):
        kept[0][-1] = msgspec.structs.replace(last, usage=_bearing(last.usage, left_out))
    return rest + [event for rank in kept for event in kept[rank]]


def _bearing(usage: Usage, others: list[Usage]) -> Usage:
    """The usage with the completion tokens of `others` added; the prompt is the same for all."""
    every = (usage, *others)
    return msgspec.structs.replace(
        usage,
        completion_tokens=sum(each.completion_tokens for each in every),
        reasoning_tokens=sum(each.reasoning_tokens for each in every),
        draft_tokens=sum(each.draft_tokens for each in every),
        accepted_tokens=sum(each.accepted_tokens for each in every),
    )


def _mean_logprobs(events: list[Event]) -> dict[int, float]:
    sums: dict[int, float] = defaultdict(float)
    counts: dict[int, int] = defaultdict(int)
    for event in events:
        match event:
            case PartDelta(choice, _, _, tokens):
                sums[choice] += sum(token.logprob or 0.0 for token in tokens)
                counts[choice] += len(tokens)
            case Finished(choice):
                counts[choice] += 0  # a candidate, even if it said nothing
    return {choice: sums[choice] / count if count else 0.0 for choice, count in counts.items()}


def _renumbered(
    event: PartStarted | PartDelta | PartEnded | Finished, choice: int, request: GenerationRequest
) -> Event:
    if isinstance(event, PartDelta) and request.logprobs is None:
        event = msgspec.structs.replace(event, tokens=())
    return msgspec.structs.replace(event, choice=choice)
