"""The runs of one request body, started together and read as one."""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from uuid import uuid4

from pippin import __version__
from pippin.api.access.exchange import Exchange
from pippin.api.dialects.base import RunInfo
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Accepted, Event
from pippin.core.models import ModelInfo
from pippin.core.tasks import Task
from pippin.service import Service
from pippin.service.run import AnyRun, Starter


async def model_info(service: Service, name: str) -> ModelInfo:
    """As `Service.model`; where that looks at the disk, which may be slow, it does so beside the event loop."""
    loaded = service.pool.info(name)
    return loaded if loaded is not None else await asyncio.to_thread(service.model, name)


async def run_info(service: Service, model: str, exchange: Exchange) -> RunInfo:
    """Ids of answers are Pippin's own: a client may use its request id twice."""
    known = True
    try:
        info = await model_info(service, model)
    except ServerError:
        info, known = ModelInfo(id=model, kind="language"), False  # `start` says what is wrong, or fetches it
    return RunInfo(
        id=exchange.id if exchange.own_id else uuid4().hex,
        created=int(time.time()),
        model=info.id,
        fingerprint=fingerprint(info),
        known=known,
    )


def fingerprint(info: ModelInfo) -> str:
    """Changes with Pippin's version and with how the model runs."""
    facts = (__version__, info.id, info.path, info.quantization, info.dtype, info.context_window)
    return "fp_" + hashlib.blake2s(repr(facts).encode(), digest_size=5).hexdigest()


class Runs:
    """Leaving it cancels whatever still runs."""

    def __init__(self, runs: Sequence[AnyRun]) -> None:
        self._runs = list(runs)
        self._pending: dict[asyncio.Task[list[Event]], int] = {}
        self._open = set(range(len(self._runs)))

    @property
    def accepted(self) -> list[Accepted]:
        return [run.accepted or Accepted(prompt_tokens=0) for run in self._runs]

    async def take(self) -> tuple[int, list[Event]]:
        """What came next, and the number of the run that it is of; no events after the end of all."""
        if len(self._runs) == 1:
            return 0, await self._runs[0].take()
        while self._open:
            waiting = set(self._pending.values())
            for number in self._open - waiting:
                self._pending[asyncio.create_task(self._runs[number].take())] = number
            done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
            task = done.pop()
            number = self._pending.pop(task)
            events = task.result()
            if events:
                return number, events
            self._open.discard(number)
        return 0, []

    def fail(self, report: ErrorReport) -> None:
        """End them all from outside; whoever reads finds the error."""
        for run in self._runs:
            run.fail(report)

    async def aclose(self) -> None:
        for task in self._pending:
            task.cancel()
        for run in self._runs:
            await run.aclose()


async def start_runs(
    service: Starter, tasks: Sequence[Task], *, model: str, ids: Sequence[str], client: str | None
) -> Runs:
    """Start all or none. Raises the first `ServerError`."""
    if len(tasks) == 1:
        return Runs([await service.start(tasks[0], model=model, id=ids[0], client=client)])
    starting = [
        asyncio.create_task(service.start(task, model=model, id=task_id, client=client))
        for task, task_id in zip(tasks, ids, strict=True)
    ]
    try:
        return Runs(await asyncio.gather(*starting))
    except BaseException:
        for start in starting:
            start.cancel()
        for outcome in await asyncio.gather(*starting, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                await outcome.aclose()
        raise
