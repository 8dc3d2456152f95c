"""Starts one worker process, watches it until its end, and never leaves it behind.

The supervisor knows the process and its requests. The pool decides which models are loaded and what follows a death.
"""

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import sys
import threading
from asyncio import StreamReaderProtocol
from collections import deque
from collections.abc import Collection
from subprocess import Popen
from typing import Final, Literal

import msgspec
import psutil

from pippin.config.accelerator import accelerator
from pippin.core.decoding import json_decoder
from pippin.core.errors import ServerError, way_out
from pippin.core.link import (
    AskStats,
    ClearCache,
    LoadFailed,
    Loading,
    LoadWeights,
    Reconfigure,
    Report,
    Shutdown,
    Stage,
    Stats,
    request_id,
)
from pippin.core.logs import LEVELS, lines
from pippin.core.models import EngineStats, RequestStatus, WorkerSpec
from pippin.runtime.workers.death import Death, death_report, starved, until_stopped
from pippin.runtime.workers.link import Link
from pippin.runtime.workers.process import Child
from pippin.runtime.workers.worker import Stages

log = logging.getLogger("pippin.worker")


class WorkerLine(msgspec.Struct, frozen=True):
    """A line written by `worker.logs`. Other output does not parse as this and is logged as it is."""

    level: Literal["debug", "info", "warning", "error", "critical"]
    message: str
    request: str | None = None
    trace: str | None = None


async def forward_log(output: asyncio.StreamReader, model: str, ways_out: deque[str | None]) -> None:
    """Log each line until the worker closes its output, and note the way out of what it tells of."""
    async for data in lines(output):
        ways_out.append(way_out(log_line(data, model)))


def log_line(data: bytes, model: str) -> str:
    """Log a line; returns its text if it may be among a worker's last words, else an empty one."""
    try:
        line: WorkerLine = json_decoder(WorkerLine).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        words = data.decode(errors="replace")
        if data.strip():
            log.info("%s: %s", model, words, extra={"model": model})
        return words
    text = line.message if line.trace is None else f"{line.message}\n{line.trace}"
    request = None if line.request is None else request_id(line.request)
    prefix = model if request is None else f"{model} [{request}]"
    extra = {"model": model, "request_id": request}
    log.log(LEVELS[line.level], "%s: %s", prefix, text, extra=extra)
    return text if LEVELS[line.level] >= logging.ERROR else ""


LOOK_AT_MEMORY_EVERY: Final = 0.25  # seconds
MEMORY_FACTOR: Final = 1.5  # of the plan: for activations, and pages that the allocator has kept
MEMORY_MARGIN: Final = 2 << 30  # bytes for Python, libraries, media and texts in preparation
OF_THE_MACHINE: Final = 0.95  # share of the machine's memory that no limit exceeds, unless the plan does


def limit_of(plan: int, total: int) -> int:
    """The memory limit in bytes for a worker with this plan, on a machine with `total` bytes."""
    return min(int(plan * MEMORY_FACTOR) + MEMORY_MARGIN, max(plan, int(total * OF_THE_MACHINE)))


class MemoryWatch:
    """Enforces the hard memory limit of one process, which follows its plan.

    A worker plans its own memory (weights, KV cache and prefix cache together). The limit lies well above that plan, so
    that correct code never reaches it, and a leak costs one worker instead of the machine. On Linux with arrays in host
    memory, the kernel enforces it (`RLIMIT_DATA`: allocations beyond it fail). Everywhere, resident memory is checked
    several times a second, because Metal and CUDA reserve address space that kernel limits cannot tell from memory; a
    worker above its limit is killed.
    """

    def __init__(self, pid: int, plan: int) -> None:
        self._pid = pid
        self._total = int(psutil.virtual_memory().total)
        self.limit = 0
        self._wanted = 0
        self.plan(plan)

    def plan(self, size: int) -> None:
        """Set a new plan, in bytes. A lower limit takes effect once the process has shrunk below it."""
        self._wanted = limit_of(size, self._total)
        if self._wanted > self.limit:
            self._set(self._wanted)

    async def excess(self) -> tuple[int, int] | None:
        """Wait until the process exceeds its limit: what it took, and this limit, in bytes; None if it ends first."""
        while True:
            try:
                process = psutil.Process(self._pid)
                resident = int(process.memory_info().rss)
            except psutil.Error:
                return None
            if resident > self.limit:
                return resident, self.limit
            if self._wanted < self.limit and resident < self._wanted:
                self._set(self._wanted)
            await asyncio.sleep(LOOK_AT_MEMORY_EVERY)

    def _set(self, limit: int) -> None:
        self.limit = limit
        if sys.platform == "linux" and accelerator() == "cpu":
            import resource

            # The process has just ended, or the kernel forbids it. Resident memory is still checked.
            with contextlib.suppress(OSError):
                _, hard = resource.prlimit(self._pid, resource.RLIMIT_DATA)
                allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                resource.prlimit(self._pid, resource.RLIMIT_DATA, (allowed, hard))


EXIT_WITHIN: Final = 1.0  # seconds from the end of the link to the end of the process
TERMINATE_AFTER: Final = 3.0  # seconds from SIGTERM to SIGKILL
STATS_WAIT: Final = 1.0  # seconds to wait for a worker that is inside a long step
LAST_WORDS: Final = 1.0  # seconds for the last frames and log lines of a dead worker
LAST_LINES: Final = 200  # among which are those of a crash; what was told earlier has not ended the worker


class WorkerProcess(Stages):
    """One worker, as `Worker` says: its process, and its socket, over which its requests go."""

    def __init__(self, spec: WorkerSpec, process: Popen[bytes]) -> None:
        super().__init__()
        self.info = spec.info
        self._title, self._far = spec.title, spec.command is not None
        self.footprint = 0
        self.progress: tuple[int, int, str] | None = None
        self._process = process
        self._free, self._starved = int(psutil.virtual_memory().available), starved()  # as it began to load
        self._need = spec.expected_bytes
        self._memory = MemoryWatch(process.pid, spec.expected_bytes)
        self._excess: tuple[int, int] | None = None
        self.requests = self._link = Link(spec.info.id, self._report, self._link_closed)
        self._last_stats = EngineStats()
        self._stats_asked: asyncio.Future[None] | None = None  # one question shared by all who ask
        self._link_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._may_load = self._stopping = self._stopped = False
        self._fault: Exception | None = None
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    async def launch(cls, spec: WorkerSpec, waiting: list[Child] | None = None) -> "WorkerProcess":
        """Start a worker, which loads up to its prompt stage; returns as soon as the process runs. One of those on this
        machine that are `waiting` for a model is taken from there instead."""
        if spec.command is None and waiting:
            child = waiting.pop()
        else:
            child = Child(None if spec.command is None else shlex.split(spec.command))
        worker, loop = cls(spec, child.process), asyncio.get_running_loop()
        worker._watch = asyncio.create_task(worker._watch_process(), name=f"watch {spec.info.id}")
        try:
            await loop.create_unix_connection(lambda: worker._link, sock=child.link)
            worker._link.send(spec)
        except BaseException:  # nobody gets the worker, so it must not outlive this call
            child.link.close()
            worker._signal(signal.SIGKILL)
            await asyncio.shield(worker.died)
            raise
        return worker

    @property
    def pid(self) -> int | None:
        return None if self.died.done() else self._process.pid

    def load_weights(self, memory_bytes: int | None) -> None:
        """Allow the worker to allocate memory for its model; it waits for this after its first stage."""
        self._may_load = True
        self._free, self._starved = int(psutil.virtual_memory().available), starved()
        self._memory.plan(max(self._need, memory_bytes or 0))
        self._link.send(LoadWeights(memory_bytes))

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        self._link.send(ClearCache(prefixes_only, disk))

    def reconfigure(self, options: dict[str, object]) -> None:
        if isinstance(share := options.get("memory_bytes"), int) and self._keeps_caches:
            self._memory.plan(max(self.footprint, self._need, share))
        self._link.send(Reconfigure(options))

    async def stats(self) -> EngineStats:
        """A fresh snapshot of the engine, or the last one brought up to date if the worker is inside a long step."""
        if self.died.done() or not self.weights_ready.done():
            return self._last_stats
        if self._stats_asked is None:
            self._stats_asked = asyncio.get_running_loop().create_future()
            self._link.send(AskStats())
        await asyncio.wait({asked := self._stats_asked}, timeout=STATS_WAIT)
        if asked.done():
            return self._last_stats
        return brought_up_to_date(self._last_stats, self._link.ids)

    async def stop(self, deadline: float) -> None:
        """Let the worker finish within `deadline` seconds, then end it; returns once the process is gone."""
        self._stopping = True
        self._link.send(Shutdown(deadline))
        for patience, number in ((deadline + 1.0, signal.SIGTERM), (TERMINATE_AFTER, signal.SIGKILL)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.died), patience)
                return
            self._signal(number)
        await asyncio.shield(self.died)

    def kill(self) -> None:
        """Kill the worker at once, whatever it is doing."""
        self._stopping = True
        self._signal(signal.SIGKILL)

    def _report(self, report: Report) -> None:
        match report:
            case Stage(stage, info, footprint):
                self.info = info
                self.footprint = footprint
                _resolve(self.prompt_ready)
                if stage == "weights":
                    self.progress = None
                    if not self._keeps_caches:
                        self._memory.plan(max(self._need, footprint))
                    _resolve(self.weights_ready)
            case Loading(done, total, message):
                self.progress = (done, total, message)
            case LoadFailed(error):
                self.fail_load(ServerError.of(error))
                self.requests.fail_all(error)
            case Stats(stats):
                requests = [msgspec.structs.replace(each, id=request_id(each.id)) for each in stats.requests]
                self._last_stats = msgspec.structs.replace(stats, requests=tuple(requests))
                self._answer_stats()

    def _answer_stats(self) -> None:
        asked, self._stats_asked = self._stats_asked, None
        if asked is not None:
            _resolve(asked)

    def _link_closed(self, fault: Exception | None) -> None:
        """The worker closed its end, or sent a malformed frame. It is killed unless it exits by itself."""
        self._fault = fault
        _resolve(self._link_ended)
        if not self._stopping:
            patience = 0.0 if fault else EXIT_WITHIN
            asyncio.get_running_loop().call_later(patience, self._signal, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        # Not by the process object, which asks the system first and so may take the status from the waiting thread.
        if self._process.returncode is None:
            # A command that reaches another machine may have children; signal its whole process group.
            send = os.killpg if self._far else os.kill
            with contextlib.suppress(ProcessLookupError):
                send(self._process.pid, number)

    @property
    def _keeps_caches(self) -> bool:
        """Whether the model fills its share of memory while serving; the scripted engine keeps no caches."""
        return self.info.kind != "scripted"

    async def _watch_memory(self) -> None:
        self._excess = await self._memory.excess()
        if self._excess is not None:
            self._signal(signal.SIGKILL)

    async def _watch_for_a_stop(self) -> None:
        """Kill the process, or the command that reaches it, once it has been stopped for long. Its requests would wait
        for ever, while a new process can answer."""
        self._stopped = await until_stopped(self._process.pid, or_any_below=self._far)
        if self._stopped:
            self._signal(signal.SIGKILL)

    def _doing(self) -> str | None:
        """What the worker is doing to load its model, for an error message; None once it is loaded."""
        if not self.prompt_ready.done():
            return "read its tokenizer"
        if not self._may_load:
            return "waited for room in memory"
        if self.weights_ready.done() and self.weights_ready.exception() is None:
            return None
        done, total, _ = self.progress or (0, 0, "")
        return f"loaded its weights ({done * 100 // total} %)" if total else "loaded its weights"

    async def _watch_process(self) -> None:
        loop, output = asyncio.get_running_loop(), asyncio.StreamReader()
        printed = self._process.stdout or self._process.stderr  # one of them is a PIPE
        pipe, _ = await loop.connect_read_pipe(lambda: StreamReaderProtocol(output), printed)
        ways_out: deque[str | None] = deque(maxlen=LAST_LINES)
        reading = asyncio.create_task(forward_log(output, self.info.id, ways_out))
        watches = [asyncio.create_task(each) for each in (self._watch_memory(), self._watch_for_a_stop())]
        status = await _end_of(self._process)
        for watching in watches:
            watching.cancel()
        await asyncio.wait({reading, self._link_ended}, timeout=LAST_WORDS)  # a grandchild may hold them open
        reading.cancel()
        pipe.close()
        death = Death(
            status=status,
            fault=self._fault,
            doing=self._doing(),
            needed=self._need,
            free=self._free,
            starved=starved() > self._starved,
            excess=self._excess,
            stopped=self._stopped,
            far=self._far,
            cause=next(filter(None, ways_out), None),
        )
        report = death_report(self._title, death)
        if not self._stopping and self._doing() is None:  # a failed load is reported by whoever waits for it
            log.error("%s", report.message)
        self.fail_load(ServerError.of(report))
        self._link.end(report)
        self._answer_stats()
        self.died.set_result(report)


async def _end_of(process: Popen[bytes]) -> int:
    """The exit status of a process, once it has ended, or the negative number of a signal."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended.set)

    # Not in the threads of the loop, which others need: this one waits as long as the process lives.
    threading.Thread(target=wait, name=f"end of {process.pid}", daemon=True).start()
    await ended.wait()
    return process.wait()


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def brought_up_to_date(last: EngineStats, ids: Collection[str]) -> EngineStats:
    """Update the last snapshot of a worker that is inside a long step and does not answer.

    `ids` are the current requests: new ones count as queued, those that left are removed.
    """
    here = set(ids)
    known = {each.id for each in last.requests}
    new = [RequestStatus(id=each, phase="queued") for each in ids if each not in known]
    return msgspec.structs.replace(
        last,
        running=max(0, last.running - len(known - here)),
        waiting=last.waiting + len(new),
        requests=(*(each for each in last.requests if each.id in here), *new),
    )
