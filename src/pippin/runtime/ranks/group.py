"""A group of ranks as one worker: one process per rank, of which rank 0 takes the requests.

All ranks load together and end together, because each holds a part of the model that no other has. The pool restarts
the group with the next request, as it does with a worker that died.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import EngineStats, ModelInfo, WorkerSpec
from pippin.core.processes import ended
from pippin.runtime.ranks.places import Held, members, members_in_cluster
from pippin.runtime.workers.supervisor import WorkerProcess
from pippin.runtime.workers.worker import Requests, Stages, Worker

LaunchRank = Callable[[WorkerSpec], Awaitable[WorkerProcess]]


async def launch_ranks(launch: LaunchRank, spec: WorkerSpec) -> Worker:
    """Start one worker, or a group of ranks if the model's options ask for one."""
    alone = spec.options.get("ranks", 1) == 1 and len(spec.options.get("machines") or ()) < 2
    return await launch(spec) if alone else await RankGroup.start(spec, launch)


class RankGroup(Stages):
    """Several ranks of one model, as one `Worker`."""

    def __init__(self, ranks: list[WorkerProcess], near: list[WorkerProcess], held: Held | None) -> None:
        """`near`: the ranks on this machine. `held`: the places that a cluster holds for the group."""
        super().__init__()
        self._ranks = ranks
        self._leader = ranks[0]
        self.requests: Requests = ranks[0].requests
        self._near = near
        self._held = held
        self._ending: asyncio.Task[None] | None = None
        self._tasks = [asyncio.create_task(self._begin()), asyncio.create_task(self._watch())]

    @classmethod
    async def start(cls, spec: WorkerSpec, launch: LaunchRank) -> "RankGroup":
        """Start all ranks. Those on this machine share the memory and threads of `spec`. Raises `ServerError`."""
        in_cluster = spec.options.get("cluster") is not None
        held = await Held.open(spec) if in_cluster else None
        ranks: list[WorkerProcess] = []
        try:
            # Both read files, and one resolves names.
            find = partial(members, spec) if held is None else partial(members_in_cluster, spec, held)
            found = await asyncio.to_thread(find)
            for own in found:
                ranks.append(await launch(own))  # noqa: PERF401 (the started ones are ended below)
        except BaseException:
            await asyncio.gather(*(each.stop(0.0) for each in ranks))
            if held is not None:
                await ended(held.process)
            raise
        near = [rank for rank, own in zip(ranks, found, strict=True) if own.command is None]
        return cls(ranks, near, held)

    @property
    def pid(self) -> int | None:
        return self._leader.pid

    @property
    def info(self) -> ModelInfo:
        return self._leader.info

    @property
    def footprint(self) -> int:
        """Bytes of the ranks on this machine."""
        return sum(each.footprint for each in self._near)

    @property
    def progress(self) -> tuple[int, int, str] | None:
        known = [each.progress for each in self._ranks if each.progress]
        return min(known, key=lambda progress: progress[0], default=None)

    def load_weights(self, memory_bytes: int | None) -> None:
        """`memory_bytes` is this machine's; ranks elsewhere take what is free there."""
        share = None if memory_bytes is None else memory_bytes // max(1, len(self._near))
        for each in self._ranks:
            each.load_weights(share if each in self._near else None)

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        self._leader.clear_cache(prefixes_only=prefixes_only, disk=disk)

    def reconfigure(self, options: dict[str, object]) -> None:
        """Rank 0 forwards it to the others."""
        if isinstance(share := options.get("memory_bytes"), int):
            options = {**options, "memory_bytes": share // max(1, len(self._near))}
        self._leader.reconfigure(options)

    async def stats(self) -> EngineStats:
        """Rank 0's statistics, with memory figures for the whole group."""
        stats = await self._leader.stats()
        count = len(self._ranks)
        return msgspec.structs.replace(
            stats,
            weight_bytes=stats.weight_bytes * count,
            active_bytes=stats.active_bytes * count,
            kv_bytes=stats.kv_bytes * count,
            kv_limit_bytes=stats.kv_limit_bytes * count,
        )

    async def stop(self, deadline: float) -> None:
        """Stop as a worker does: rank 0 finishes its requests and tells the others to exit."""
        report = ErrorReport(kind="worker_died", message="The model was unloaded.")
        self._ending = self._ending or asyncio.create_task(self._end(report, deadline))
        await asyncio.shield(self._ending)

    async def _begin(self) -> None:
        """Resolve both stages of the load, each once all ranks have reached it."""
        for stage, own in (("prompt_ready", self.prompt_ready), ("weights_ready", self.weights_ready)):
            theirs = [getattr(each, stage) for each in self._ranks]
            try:
                await asyncio.gather(*map(asyncio.shield, theirs))
            except ServerError as error:
                self.fail_load(error)
                return
            if not own.done():
                own.set_result(None)

    async def _watch(self) -> None:
        """End the group when one of its ranks ends."""
        ends = [each.died for each in self._ranks]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        first = next(end for end in ends if end.done()).result()
        self._ending = self._ending or asyncio.create_task(self._end(first))

    async def _end(self, report: ErrorReport, deadline: float | None = None) -> None:
        """End all ranks. With a `deadline`, requests may finish within that many seconds; without one, a rank is lost.

        If a rank is lost, the others are killed: rank 0 may wait for the lost one for ever, and the next group must not
        wait for that.
        """
        for task in self._tasks:
            task.cancel()
        if deadline is None:
            self._over(report)
            for each in self._ranks:
                each.kill()
        try:
            await self._leader.stop(deadline or 0.0)
            await asyncio.gather(*(each.stop(0.0) for each in self._ranks[1:]))
            if self._held is not None:
                await ended(self._held.process)
        finally:
            self._over(report)

    def _over(self, report: ErrorReport) -> None:
        """Report the end to everyone, once."""
        if not self.died.done():
            self.fail_load(ServerError.of(report))
            self.requests.fail_all(report)
            self.died.set_result(report)
