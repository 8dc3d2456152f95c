"""One run: a calm start, a storm of faults under load, a calm end that must look like the start."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.chaos.clients import FORMS, SECONDS, Client, Form
from tests.chaos.faults import ACTS, WAITING, Act, Stage
from tests.chaos.health.probes import INTERVAL, LATE, Probe, read_probes
from tests.chaos.ledger import Ledger
from tests.chaos.neighbours import NEIGHBOURS, batch
from tests.chaos.server import ROOT, Reading, ServerProcess

CLIENTS = 12
IN_STORMS = (*FORMS, *NEIGHBOURS)
SETTLE = 15.0  # seconds in which everything must come back to the start
MEGABYTES = 80.0  # that the API server may have grown: Python keeps freed memory for itself
LIMITS = ["--max-body-mb", "2", "--max-concurrent", "128", "--drain-timeout", "2", "--body-timeout", "5"]


@dataclass
class Report:
    ledger: Ledger
    seconds: float = 0.0
    before: Reading | None = None
    after: Reading | None = None
    health: list[Probe] = field(default_factory=list)
    load: tuple[float, float, float] = (0, 0, 0)

    @property
    def counted(self) -> list[Probe]:
        """All but those that overlap a time when there was no server, on purpose: from the signal that ends it to the
        first answer of the next one."""
        return [probe for probe in self.health if not probe.overlaps(self.ledger.down)]


def write_models(folder: Path) -> list[str]:
    (folder / "alpha.script.json").write_text('{"gap": 0.0005, "context_window": 65536}')
    (folder / "beta.script.json").write_text('{"gap": 0.002, "context_window": 65536, "load_seconds": 0.2}')
    (folder / "gamma.script.json").write_text("{}")
    return ["alpha", "beta"]


async def storm(
    folder: Path, seconds: float, seed: int, acts: list[str] | None = None, more: Sequence[str] = ()
) -> Report:
    """All acts once at least, in random order, spread over the time. `more`: flags of the server."""
    ledger = Ledger()
    models = write_models(folder)
    flags = ["alpha.script.json", "beta.script.json", "gamma.script.json", *LIMITS, *more]
    server = ServerProcess(folder, flags)
    report = Report(ledger)
    stage = Stage(server, models, ledger, random.Random(seed))
    await server.start()
    try:
        async with probing(server, report.health):
            await calm(server, models, ledger)
            await warm(server, models)
            report.before = server.reading()
            began = time.monotonic()
            async with clients(server, models, ledger, seed):
                await act(stage, began + seconds, acts or list(ACTS))
            report.seconds = time.monotonic() - began
            await calm(server, models, ledger)
            report.after = await settled(server, report.before, ledger)
        report.load = os.getloadavg()
    finally:
        left = await server.stop(signal.SIGTERM)
    if left:
        ledger.violation(f"workers outlived the server: {left}")
    judge_log(server, ledger)
    judge_health(report)
    return report


async def act(stage: Stage, until: float, names: list[str]) -> None:
    """Acts that only wait go on beside the next ones."""
    count = 0
    waiting: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as beside:
        while time.monotonic() < until or count < len(names):
            order = stage.random.sample(names, len(names))
            for name in sorted(order, key=lambda name: name not in WAITING):
                if time.monotonic() >= until and count >= len(names):
                    return
                if (
                    name == "the server restarted" and waiting
                ):  # its end would cut slow readers off, with a trace
                    await asyncio.wait(waiting)
                stage.ledger.begins(name)
                acting = beside.create_task(perform(ACTS[name], stage))
                if name in WAITING:
                    waiting.append(acting)
                else:
                    await acting
                count += 1
                await asyncio.sleep(stage.random.uniform(0.1, 0.6))


async def perform(act: Act, stage: Stage) -> None:
    await act(stage)


@asynccontextmanager
async def clients(
    server: ServerProcess,
    models: list[str],
    ledger: Ledger,
    seed: int,
    forms: Sequence[Form] = IN_STORMS,
    *,
    count: int = CLIENTS,
    seconds: float = SECONDS,
) -> AsyncIterator[None]:
    """`seconds`: after which a request counts as unanswered."""
    started = [
        Client(server.address, models, ledger, seed * 1000 + number, forms, seconds)
        for number in range(count)
    ]
    tasks = [asyncio.create_task(client.run()) for client in started]
    try:
        yield
    finally:
        for client in started:
            client.done.set()
        await asyncio.gather(*tasks)


@asynccontextmanager
async def probing(
    server: ServerProcess, probes: list[Probe], interval: float = INTERVAL
) -> AsyncIterator[None]:
    """Ask for the server's health from a process of its own meanwhile; what came of it is added at the end."""
    output = server.folder / "health.txt"
    command = [
        sys.executable,
        "-m",
        "tests.chaos.health.probes",
        str(server.port),
        str(server.pid_file),
        str(interval),
    ]
    with output.open("w") as file:
        prober = subprocess.Popen(command, stdout=file, cwd=ROOT)  # noqa: ASYNC220 - a fork is short
    try:
        yield
    finally:
        prober.kill()
        prober.wait()
        probes += read_probes(output)


async def calm(server: ServerProcess, models: list[str], ledger: Ledger) -> None:
    """Each model answers once more, alone."""
    for model in models:
        for _ in range(20):
            body = {"model": model, "messages": [{"role": "user", "content": "calm"}]}
            answer = await server.ask("/v1/chat/completions", "POST", body)
            if "choices" in answer:
                break
            await asyncio.sleep(1)  # a load that was killed is not tried again at once
        else:
            ledger.violation(f"{model} does not answer in the calm: {answer}")
    with contextlib.suppress(KeyError):
        await server.ask("/v1/models/unload", "POST", {"model": "gamma"})


async def warm(server: ServerProcess, models: list[str]) -> None:
    """The first batch opens the database of batches, which stays open and is no leak."""
    async with httpx.AsyncClient(base_url=server.address, timeout=60) as http:
        assert await batch(http, models[0], "warm") == "warm"


async def settled(server: ServerProcess, before: Reading, ledger: Ledger) -> Reading:
    """Wait until nothing runs and nothing is held more than at the start; what stays is a leak."""
    deadline = time.monotonic() + SETTLE
    while True:
        status = await server.ask("/v1/status")
        health = await server.ask("/health")
        after = server.reading()
        wrong = leaks(before, after)
        if status["num_running"] or status["num_waiting"] or health["active_requests"] or status["requests"]:
            wrong.append(f"requests are still there: {status['requests'][:3]} {health['active_requests']}")
        if status["kv"]["bytes"]:
            wrong.append(f"{status['kv']['bytes']} bytes of KV cache are still held")
        if not wrong or time.monotonic() > deadline:
            for text in wrong:
                ledger.violation(f"leak: {text}")
            return after
        await asyncio.sleep(0.3)


def leaks(before: Reading, after: Reading) -> list[str]:
    found = []
    if after.descriptors > before.descriptors + 3:
        found.append(f"{before.descriptors} descriptors before, {after.descriptors} after")
    if after.processes > before.processes:
        found.append(f"{before.processes} processes before, {after.processes} after")
    if after.megabytes > before.megabytes + MEGABYTES:
        found.append(f"{before.megabytes:.0f} MB before, {after.megabytes:.0f} MB after")
    return found


def judge_log(server: ServerProcess, ledger: Ledger) -> None:
    text = server.log.read_text(errors="replace")
    for sign in (
        "Traceback (most recent call last)",
        "Fatal Python error: Segmentation",
        "was never retrieved",
        "was never awaited",
    ):
        if sign in text:
            place = text.index(sign)
            ledger.violation(f"in the log: {text[max(0, place - 300) : place + 1500]}")


def judge_health(report: Report) -> None:
    """`/health` is never silent, and never late by the server's own doing."""
    for probe in report.counted:
        if not probe.answered or probe.own > LATE:
            late = "late" if probe.answered else "not answered"
            report.ledger.violation(f"/health was {late}: {probe}")
