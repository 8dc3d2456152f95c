"""Serve mixed work for long, and show that nothing grows: `python -m tests.soak [--minutes 60]`.

A real server serves small random models of every kind (attention, sliding windows, recurrent state, adapters,
embeddings, vision, speech, transcription, images), with room for three of them. Clients ask for what `mix` draws; one
in five hangs up, and in each round a worker is killed. Every minute all models are unloaded and what is left of the
server is measured: memory, descriptors, threads, processes and files. The run fails where the last measurement is above
the first by more than `ALLOWED`, where `/health` is slow, or the log has many warnings. The first comes after the
warm-up, as Python and its libraries keep what they have once taken.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from benchmarks.svg import Line, chart

from tests.chaos.clients import Broken, Refused
from tests.chaos.health.probes import Probe, read_probes, summary
from tests.chaos.neighbours import talking
from tests.running_server import ROOT, running_server
from tests.soak.mix import Mix, Wish
from tests.soak.models import LANGUAGE, make_models

CLIENTS: Final = 6
ROUND: Final = 60.0  # seconds of work between two measurements
SHORTEST_ROUND: Final = 15.0
LEAVE_WITHIN: Final = 60.0  # seconds for workers to end
AT_ONCE: Final = 200  # requests that are answered in threads: all of the server's are begun by them
BATCH_SECONDS: Final = 300.0
ENDS: Final = ("data: [DONE]\n\n", "message_stop", "transcript.text.done", '"done":true')
ACCEPTS: Final = {"accept": "application/json, text/event-stream"}
TURN_ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "response.done")
FINE: Final = ("streamed", "whole", "hung up")
PLOT: Final = ROOT / "docs" / "plots" / "soak.svg"


@dataclass(frozen=True)
class Rest:
    """What the server and its workers take while nothing runs and no model is loaded. Memory in MiB."""

    minute: float
    memory: float
    descriptors: int
    threads: int
    processes: int
    files: int  # in the home of the server, without databases' own
    busy_memory: float  # of the server and all workers, just before
    answered: int


ALLOWED: Final = {"memory": 24.0, "descriptors": 4, "threads": 0, "processes": 0, "files": 4}
HEALTHY: Final = 50.0  # milliseconds without waits for a core; 99 of 100 answers of `/health` come sooner
WARNINGS: Final = 10  # lines of the log in a minute, without those of killed workers
LOOK: Final = 0.25  # seconds between two questions for `/health`


class Soak:
    def __init__(self, address: str, mix: Mix, home: Path, pause: float = 0.0) -> None:
        """`pause`: seconds for which a client rests after a request, on average."""
        self._pause = pause
        self._home = home
        self._address = address
        self._mix = mix
        self._server = next(
            child for child in psutil.Process().children() if "serve" in " ".join(child.cmdline())
        )
        self._began = time.monotonic()
        self.answers: Counter[tuple[str, str]] = Counter()
        """By kind, and how it went."""
        self.rests: list[Rest] = []
        self.health: list[Probe] = []

    async def run(self, minutes: float, length: float) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)  # connections of ours are no leak of the server's
        async with httpx.AsyncClient(base_url=self._address, timeout=300.0, limits=limits) as client:
            await asyncio.gather(*(client.get("/v1/models") for _ in range(AT_ONCE)))
            batch = self._mix.batch(LANGUAGE[0])
            self.answers[batch.kind, await _batched(client, batch)] += 1  # its database stays open
            await self._round(client, length)  # the warm-up
            end = time.monotonic() + minutes * 60
            self._began = time.monotonic()
            await self._rest(client)
            while time.monotonic() < end:
                await self._round(client, min(length, max(1.0, end - time.monotonic())))
                await self._rest(client)

    async def _round(self, client: httpx.AsyncClient, seconds: float) -> None:
        until = time.monotonic() + seconds
        clients = (self._client(client, until) for _ in range(CLIENTS))
        await asyncio.gather(*clients, self._kill(seconds / 2))

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Ask for the server's health from a process of its own meanwhile."""
        process, output = self._home / "server.pid", self._home / "health.txt"
        process.write_text(str(self._server.pid))
        port = self._address.rpartition(":")[2]
        command = [sys.executable, "-m", "tests.chaos.health.probes", port, str(process), str(LOOK)]
        with output.open("w") as file:
            prober = subprocess.Popen(command, stdout=file, cwd=ROOT)
        try:
            yield
        finally:
            prober.kill()
            prober.wait()
            self.health += read_probes(output)

    async def _kill(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._server.send_signal(signal.SIGHUP)  # reads its settings again
        if workers := self._server.children():
            self._mix.random.choice(workers).kill()

    async def _client(self, client: httpx.AsyncClient, until: float) -> None:
        draw = self._mix.random
        while time.monotonic() < until:
            for wish in self._mix.several():
                hangs_up = not wish.batch and draw.random() < 0.2
                gives_up = draw.uniform(0.01, 0.5) if hangs_up else None
                how = "hung up"
                try:
                    async with asyncio.timeout(gives_up):
                        how = await _asked(client, wish)
                except TimeoutError:
                    pass
                self.answers[wish.kind, how] += 1
                await asyncio.sleep(draw.uniform(0.0, 2 * self._pause))
                if time.monotonic() >= until:
                    break

    async def _rest(self, client: httpx.AsyncClient) -> None:
        """Unload everything, and measure what is left."""
        busy = _memory([self._server, *self._server.children(recursive=True)])
        until = time.monotonic() + LEAVE_WITHIN
        while (
            self._server.children() and time.monotonic() < until
        ):  # some still load for clients that have left
            await client.post("/v1/models/unload", json={"all": True})
            await asyncio.sleep(1.0)
        processes = [self._server, *self._server.children(recursive=True)]
        rest = Rest(
            minute=(time.monotonic() - self._began) / 60,
            memory=_memory(processes),
            descriptors=sum(each.num_fds() for each in processes),
            threads=sum(each.num_threads() for each in processes),
            processes=len(processes),
            files=sum(each.is_file() for each in self._home.rglob("*")),
            busy_memory=busy,
            answered=self.answers.total(),
        )
        self.rests.append(rest)
        print(json.dumps(asdict(rest)), flush=True)


async def _asked(client: httpx.AsyncClient, wish: Wish) -> str:
    """Ask, read all of the answer, and say how it went."""
    if wish.events:
        return await _talked(client, wish)
    if wish.batch:
        return await _batched(client, wish)
    sent: dict[str, Any] = (
        {"json": wish.body}
        if wish.file is None
        else {"data": wish.body, "files": {"file": ("speech.flac", wish.file)}}
    )
    async with client.stream("POST", wish.path, headers=ACCEPTS, **sent) as reply:
        answer = await reply.aread()
    if reply.status_code != 200 or not answer:
        return f"{reply.status_code} {answer.decode(errors='replace')[:200]}"
    if not wish.streamed:
        return "whole"
    text = answer.decode()
    ended = any(sign in text[-400:] for sign in ENDS)
    return "streamed" if ended and '"error"' not in text else f"broken {text[-200:]}"


async def _batched(client: httpx.AsyncClient, wish: Wish) -> str:
    """Upload a batch, wait for its end, read what was answered, and delete its files."""
    form = {"file": ("lines.jsonl", wish.batch)}
    file = (await client.post("/v1/files", data={"purpose": "batch"}, files=form)).json()["id"]
    order = {"input_file_id": file, "endpoint": wish.path, "completion_window": "24h"}
    batch = (await client.post("/v1/batches", json=order)).json()
    until = time.monotonic() + BATCH_SECONDS
    while batch.get("status") in ("validating", "in_progress", "finalizing") and time.monotonic() < until:
        await asyncio.sleep(0.5)
        batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
    if batch.get("status") != "completed" or batch["request_counts"]["failed"]:
        return f"broken {batch}"
    answered = (await client.get(f"/v1/files/{batch['output_file_id']}/content")).content.splitlines()
    for each in (file, batch["output_file_id"]):
        await client.delete(f"/v1/files/{each}")
    lines = len(wish.batch.splitlines())
    return "whole" if len(answered) == lines else f"broken {len(answered)} of {lines} lines"


async def _talked(client: httpx.AsyncClient, wish: Wish) -> str:
    """Send the events of a wish over a WebSocket; each that asks for a response waits for its end."""
    try:
        async with talking(client, wish.path) as talk:
            for event in wish.events:
                await talk.send(**event)
                if event["type"] == "response.create":
                    ended = await talk.until(*TURN_ENDS)
                    if ended["response"]["status"] == "failed":
                        return f"broken {ended}"
    except (Refused, Broken) as error:
        return f"broken {error}"
    return "whole"


def _memory(processes: list[psutil.Process]) -> float:
    """MiB resident, of those that are still there."""
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total / 2**20


def grown(rests: list[Rest]) -> list[str]:
    """What the last rest has more of than the first, beyond what is allowed."""
    first, last = asdict(rests[0]), asdict(rests[-1])
    return [
        f"{name}: {first[name]:g} at the start, {last[name]:g} at the end, {allowed:g} more allowed"
        for name, allowed in ALLOWED.items()
        if last[name] - first[name] > allowed
    ]


def write_plot(rests: list[Rest], path: Path) -> None:
    lines = [
        Line("memory at rest, MiB", [(each.minute, each.memory) for each in rests]),
        Line("descriptors at rest", [(each.minute, float(each.descriptors)) for each in rests]),
        Line("threads at rest", [(each.minute, float(each.threads)) for each in rests]),
    ]
    path.write_text(chart("The server between rounds of mixed work", "minutes", "", lines))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--round", type=float, help="seconds of work between two measurements")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two requests of a client")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, default=PLOT)
    given = parser.parse_args()
    length = given.round or max(SHORTEST_ROUND, min(ROUND, given.minutes * 60 / 10))
    with tempfile.TemporaryDirectory(prefix="pippin-soak-") as place:
        folder = Path(place)
        served = make_models(folder)
        print(f"Kinds: {', '.join(sorted(served.kinds))}", flush=True)
        with running_server(folder, *served.words) as address:
            soak = Soak(address, Mix(served.kinds, given.seed), folder, given.pause)
            with soak.probing():
                asyncio.run(soak.run(given.minutes, length))
        lines = (folder / "server.log").read_text().splitlines()
    faults = [line for line in lines if "Traceback" in line]
    warned = [line for line in lines if " WARNING " in line or " ERROR " in line]
    warned = [line for line in warned if "signal 9" not in line]
    if len(warned) > WARNINGS * max(1.0, given.minutes):
        faults += [f"{len(warned)} warnings in the log", *warned[:20]]
    print(f"/health: {summary(soak.health)}")
    own = sorted(each.own for each in soak.health)
    if own[len(own) * 99 // 100] > HEALTHY or not all(each.answered for each in soak.health):
        faults.append("/health was slow")
    write_plot(soak.rests, given.plot)
    for (kind, how), count in sorted(soak.answers.items()):
        print(f"{kind:14} {how:10} {count}")
    wrong = [f"{kind}: {how}" for kind, how in soak.answers if how not in FINE]
    problems = [*grown(soak.rests), *wrong, *faults]
    print("\n".join(problems) or f"It ended where it began, after {soak.answers.total()} requests.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
