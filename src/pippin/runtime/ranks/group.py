"""A group of ranks as one worker: as many processes, of which rank 0 takes the requests.

All of them load together and end together: what one rank holds is nowhere else. The pool starts the group again with
the next request, as it does with a worker that died.
"""

import asyncio
import json
import secrets
import socket
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import EngineStats, ModelInfo, RankSpec, WorkerSpec
from pippin.core.tasks import Task
from pippin.runtime.workers.link import Mailbox
from pippin.runtime.workers.worker import Worker

LOOPBACK: Final = "127.0.0.1"


class Rank(Worker, Protocol):
    """A worker that can be ended at once."""

    def kill(self) -> None: ...


class LaunchRank(Protocol):
    async def __call__(self, spec: WorkerSpec) -> Rank: ...


@dataclass(frozen=True)
class RankLauncher:
    """Starts one worker, or a group of ranks where the model's options ask for one."""

    launch: LaunchRank

    async def __call__(self, spec: WorkerSpec) -> Worker:
        count = spec.options.get("ranks", 1)
        return await self.launch(spec) if count == 1 else await RankGroup.start(spec, count, self.launch)


class RankGroup:
    """Several ranks of one model, as one `Worker`."""

    def __init__(self, info: ModelInfo, ranks: list[Rank], files: ExitStack) -> None:
        loop = asyncio.get_running_loop()
        self._info = info
        self._ranks = ranks
        self._files = files
        self._ending: asyncio.Task[None] | None = None
        self.prompt_ready: asyncio.Future[None] = loop.create_future()
        self.weights_ready: asyncio.Future[None] = loop.create_future()
        self.died: asyncio.Future[ErrorReport] = loop.create_future()
        self._tasks = [asyncio.create_task(self._begin()), asyncio.create_task(self._watch())]

    @classmethod
    async def start(cls, spec: WorkerSpec, count: int, launch: LaunchRank) -> "RankGroup":
        """Start `count` ranks on this machine, which share the memory and threads of `spec`."""
        files = ExitStack()
        ranks: list[Rank] = []
        try:
            for rank in places(convert(spec.options, ModelOptions), count, files):
                threads = None if spec.threads is None else max(1, spec.threads // count)
                own = msgspec.structs.replace(
                    spec, rank=rank, threads=threads, expected_bytes=spec.expected_bytes // count
                )
                ranks.append(await launch(own))
        except BaseException:
            await asyncio.gather(*(each.stop(0.0) for each in ranks))
            files.close()
            raise
        return cls(spec.info, ranks, files)

    @property
    def _leader(self) -> Rank:
        return self._ranks[0]

    @property
    def pid(self) -> int | None:
        return self._leader.pid

    @property
    def info(self) -> ModelInfo:
        return self._leader.info

    @property
    def footprint(self) -> int:
        return sum(each.footprint for each in self._ranks)

    @property
    def progress(self) -> tuple[int, int, str] | None:
        known = [each.progress for each in self._ranks if each.progress]
        return min(known, key=lambda progress: progress[0], default=None)

    def load_weights(self, memory_bytes: int | None) -> None:
        for each in self._ranks:
            each.load_weights(self._share(memory_bytes))

    def submit(self, id: str, task: Task, choices: int, mailbox: Mailbox | None = None) -> Mailbox:
        if self.died.done():
            raise ServerError.of(self.died.result())
        return self._leader.submit(id, task, choices, mailbox)

    def cancel(self, id: str) -> None:
        self._leader.cancel(id)

    def fail_all(self, error: ErrorReport) -> None:
        self._leader.fail_all(error)

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        self._leader.clear_cache(prefixes_only=prefixes_only, disk=disk)

    def reconfigure(self, options: dict[str, object]) -> None:
        """Rank 0 tells the others."""
        if isinstance(share := options.get("memory_bytes"), int):
            options = {**options, "memory_bytes": self._share(share)}
        self._leader.reconfigure(options)

    async def stats(self) -> EngineStats:
        """Of rank 0, with the memory of all."""
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
        """As a worker's `stop`: rank 0 finishes, and tells the others to leave."""
        report = ErrorReport(kind="worker_died", message="The model was unloaded.")
        self._ending = self._ending or asyncio.create_task(self._end(report, deadline))
        await asyncio.shield(self._ending)

    def _share(self, memory_bytes: int | None) -> int | None:
        return None if memory_bytes is None else memory_bytes // len(self._ranks)

    async def _begin(self) -> None:
        """Tell of both stages of the load, once all ranks have come through them."""
        for stage, own in (("prompt_ready", self.prompt_ready), ("weights_ready", self.weights_ready)):
            theirs = [getattr(each, stage) for each in self._ranks]
            try:
                await asyncio.gather(*map(asyncio.shield, theirs))
            except ServerError as error:
                self._fail_load(error)
                return
            if not own.done():
                own.set_result(None)

    async def _watch(self) -> None:
        """End the group when one of its ranks ends."""
        ends = [each.died for each in self._ranks]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        first = next(end for end in ends if end.done()).result()
        self._ending = self._ending or asyncio.create_task(self._end(first))

    def _fail_load(self, error: ServerError) -> None:
        for stage in (self.prompt_ready, self.weights_ready):
            if not stage.done():
                stage.set_exception(error)
                stage.exception()  # read once here: nobody may be waiting

    async def _end(self, report: ErrorReport, deadline: float | None = None) -> None:
        """End all ranks; within `deadline` seconds requests may finish, where none is lost already.

        Where one is lost the others are killed, for rank 0 may wait for it without end, and the next group need not
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
        finally:
            self._files.close()
            self._over(report)

    def _over(self, report: ErrorReport) -> None:
        """Tell everyone, once."""
        if not self.died.done():
            self._fail_load(ServerError.of(report))
            self.fail_all(report)
            self.died.set_result(report)


def places(options: ModelOptions, count: int, files: ExitStack) -> list[RankSpec]:
    """The places of `count` ranks on this machine; `files` removes what they read at their start."""
    folder = Path(files.enter_context(tempfile.TemporaryDirectory(prefix="pippin-ranks-")))
    ports = free_ports(count + 2)
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"{LOOPBACK}:{port}"] for port in ports[2:]]))
    return [
        RankSpec(
            rank=rank,
            size=count,
            split=options.split,
            backend=options.rank_backend,
            control=f"{LOOPBACK}:{ports[0]}",
            coordinator=f"{LOOPBACK}:{ports[1]}",
            hosts_file=str(hosts),
            secret=secret,
        )
        for secret in [secrets.token_hex(32)]
        for rank in range(count)
    ]


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens at now."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
