"""The worker's life from its first frame to its exit: it loads in two stages, the second on command, then loops."""

import ctypes
import faulthandler
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec
import psutil

from pippin.config.options.model import ModelOptions
from pippin.config.worker_environment import choose_gpu, rank_environment
from pippin.core import logs
from pippin.core.decoding import convert
from pippin.core.errors import ErrorReport, ServerError, trace_of, with_way_out, without_folders
from pippin.core.link import GROUP_LOST, LOAD_FAILED, STEP_FAILED, LoadFailed, Loading, Stage
from pippin.core.models import WorkerSpec
from pippin.core.safetensors import digest_of
from pippin.engines.base import Engine, LoadProgress, Preparer
from pippin.engines.cpu.blas import accelerate_blas
from pippin.worker.forbidden import forbid_foreign_code, forbid_network, keep_file_limit
from pippin.worker.loop import (
    LinkLost,
    Preparation,
    StepLoop,
    WorkerLink,
    give_memory_back,
    request_id,
)
from pippin.worker.ranks import NotMet, meet

log = logging.getLogger(__name__)


def over_pipes() -> tuple[int, int]:
    """The link of a worker that a program runs here: this process's standard input and output. From now on, prints go
    to standard error."""
    reading, writing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    return reading, writing


class WorkerFormatter(logging.Formatter):
    """Formats a record as one line of JSON; the API server logs it again at its level, in its own format."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"level": record.levelname.lower(), "message": record.getMessage()}
        request = request_id.get()
        if request is not None:
            line["request"] = request
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logging(spec: WorkerSpec) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(WorkerFormatter())
    logging.basicConfig(handlers=[handler], force=True)
    logs.set_level(spec.log_level)


PR_SET_PDEATHSIG: Final = 1  # of prctl(2)
LAST_WORDS: Final = 5.0  # seconds that a final frame may take to leave
KILLED_FIRST: Final = 500  # of 1000
SWITCH: Final = 0.001
"""Seconds that the step loop waits for the interpreter while a thread processes a long text in Python. A fifth of
Python's default, because each step waits several times."""
AFTER_A_LOSS: Final = 0.5  # seconds
PROGRESS_INTERVAL: Final = 0.1  # seconds between reports of a load


def main() -> None:
    """Run a worker: `python -m pippin.worker FD PARENT_PID`.

    With `- PATH`, the link is this process's input and output, brought by a program (such as ssh) from the server's
    machine; PATH is the model's folder here.
    """
    if sys.argv[1] == "-":
        end_with_parent(os.getppid())  # a stopped process does not notice the end of its input
        reading, writing = over_pipes()
        path = sys.argv[2]
    else:
        end_with_parent(int(sys.argv[2]))
        reading = writing = int(sys.argv[1])
        path = None
    offer_to_the_killer()
    os.set_inheritable(reading, False)
    link = WorkerLink(reading, writing)
    gc.disable()  # what is imported is no garbage, and looking through it takes a tenth of the time
    import_ahead(reading)
    try:
        spec = link.receive_spec()
    except LinkLost:
        return
    if path is not None:
        spec = msgspec.structs.replace(spec, info=msgspec.structs.replace(spec.info, path=path))
    configure_logging(spec)
    faulthandler.enable()  # a crash in a library prints a traceback
    forbid_foreign_code(spec)
    forbid_network(spec)
    sys.setswitchinterval(SWITCH)
    end_now(run(spec, link))


def import_ahead(orders: int) -> None:
    """Import what a language model needs, for as long as the server has not said what to load: nothing that imports
    mlx, which the accelerated BLAS must precede."""
    for module in ("pippin.engines.language.job", "pippin.output.formats"):
        if not select.select([orders], [], [], 0)[0]:
            importlib.import_module(module)


def run(spec: WorkerSpec, link: WorkerLink) -> int:
    """Load the model and serve it; returns the exit status of the process."""
    preparation = Preparation()
    loop = StepLoop(link, preparation)
    reader = threading.Thread(
        target=link.read_orders, args=(loop.receive, lambda: end_now(0)), name="reader", daemon=True
    )
    reader.start()
    try:
        return load_and_serve(spec, link, loop, preparation)
    except LinkLost:
        return 0
    except ServerError as error:  # its message says what is wrong
        log.debug("Loading %s failed: %s", spec.info.id, error.report.message)  # its waiters report it
        failure = error.report
    except Exception as error:
        log.error("Loading %s failed in these lines:\n%s", spec.info.id, trace_of(error))
        log.debug("Loading %s failed.", spec.info.id, exc_info=True)
        reason = without_folders(f"{type(error).__name__}: {error}", spec.info.path)
        message = f"The model {spec.info.id!r} could not be loaded: {reason}"
        failure = ErrorReport(kind="load_failed", message=message)
    failure = msgspec.structs.replace(failure, message=with_way_out(failure.message))
    with suppress(LinkLost):
        link.send(LoadFailed(failure))
        link.drain(LAST_WORDS)
    return LOAD_FAILED


def load_and_serve(spec: WorkerSpec, link: WorkerLink, loop: StepLoop, preparation: Preparation) -> int:
    """Load the model in its stages, tell each, and serve it until the server ends this process."""
    check_files(spec)
    if spec.rank is not None:
        choose_gpu(spec.rank)
    keep_file_limit()
    kind = import_kind(spec)
    preparer: Preparer = kind.open_preparer(spec)
    gc.freeze()  # modules and the tokenizer, which stay
    gc.enable()
    if spec.info.kind != "scripted":
        from pippin.engines.language.template.template import MOST_SECONDS, WATCH

        # End this process if a rendering outlasts its own limit by far; another one is started then.
        WATCH.begin(3 * MOST_SECONDS)
    preparation.begin(preparer, loop.prepared, loop.wants)
    link.send(Stage("prompt", preparer.info, resident_bytes()))
    admission = loop.admission()
    if admission is None:
        return 0
    spec = msgspec.structs.replace(spec, memory_bytes=admission.memory_bytes)
    if spec.rank is not None:
        return run_rank(spec, kind, preparer, loop, link)
    progress = _progress(link)
    progress(0, spec.info.size_bytes, "weights")
    engine: Engine = kind.open_engine(spec, preparer, progress)
    give_memory_back()
    gc.freeze()  # the engine stays, too: looking through it takes as long as several steps
    footprint = max(resident_bytes(), engine.stats().active_bytes)
    link.send(Stage("weights", preparer.info, footprint))
    return serve(loop, engine, link)


def run_rank(spec: WorkerSpec, kind: ModuleType, preparer: Preparer, loop: StepLoop, link: WorkerLink) -> int:
    """The part of `load_and_serve` from the weights on, for a rank of a group: rank 0 serves, the others follow it."""
    assert spec.rank is not None
    if not hasattr(kind, "open_rank"):
        message = f"{spec.info.id!r} is no language model: it runs in one process. Start it without ranks."
        raise ServerError("load_failed", message, "ranks")
    try:
        group = meet(spec.rank, rank_lost)
    except NotMet as error:
        raise ServerError("load_failed", str(error), "ranks") from error
    with rank_environment(spec.rank):
        found = kind.open_rank(spec, preparer, _progress(link), group)
    link.send(Stage("weights", preparer.info, resident_bytes()))
    if spec.rank.rank == 0:
        return serve(loop, found, link)
    try:
        found.run()
    except Exception:
        log.exception("This rank failed in a step; it ends.")
        return STEP_FAILED
    return 0


def rank_lost(sentence: str) -> None:
    """End this rank, whatever its threads wait for. Not at once: a watcher of all ranks should see which one went
    first, and a group that was told to end does so before anything is said of a loss."""
    time.sleep(AFTER_A_LOSS)
    log.error("%s This rank ends.", sentence)
    end_now(GROUP_LOST)


def check_files(spec: WorkerSpec) -> None:
    """Raises `ServerError("load_failed")` if the model's files here differ from those of the server elsewhere."""
    if spec.files is not None and digest_of(Path(spec.info.path or "")) != spec.files:
        message = (
            f"The files of the model {spec.info.id!r} on {socket.gethostname()} are not those of the server: "
            "bring the same ones there."
        )
        raise ServerError("load_failed", message)


def import_kind(spec: WorkerSpec) -> ModuleType:
    """The module for the model's kind.

    The accelerated BLAS must be loaded before mlx, which that module imports.
    """
    if spec.info.kind != "scripted":
        accelerate_blas(convert(spec.options, ModelOptions), spec.threads)
    return importlib.import_module(f"pippin.engines.{spec.info.kind}")


def serve(loop: StepLoop, engine: Engine, link: WorkerLink) -> int:
    """Step until told to exit; returns the exit status."""
    try:
        loop.run(engine)
    except LinkLost:
        return 0
    except Exception:  # the engine's state can't be trusted now: the supervisor starts another process
        log.exception("The engine failed in a step; the worker ends.")
        return STEP_FAILED
    link.drain(LAST_WORDS)
    return 0


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _progress(link: WorkerLink) -> LoadProgress:
    last = 0.0

    def report(done: int, total: int, message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total or now - last >= PROGRESS_INTERVAL:
            last = now
            link.send(Loading(done, total, message))

    return report


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent's thread dies (Linux; elsewhere the socket's end tells)."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return  # the socket's end still tells
    if os.getppid() != parent:  # it died before prctl took effect
        os._exit(0)


def offer_to_the_killer() -> None:
    """Ask the kernel to kill this process before others when the machine runs out of memory (Linux, proc(5))."""
    if sys.platform == "linux":
        with suppress(OSError):  # a container may forbid it
            Path("/proc/self/oom_score_adj").write_text(str(KILLED_FIRST))


def end_now(status: int) -> None:
    """End the process without any cleanup: threads may hang in foreign code."""
    sys.stderr.flush()
    os._exit(status)
