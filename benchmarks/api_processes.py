"""What several API processes, and several replicas, cost and bring: CPU time for each token, and tokens a second.

    python -m benchmarks.api_processes --streams 1000 --rounds 3 --processes 1 2
    python -m benchmarks.api_processes --streams 1000 --rounds 3 --processes 1 --replicas 1 2 4
    python -m benchmarks.api_processes --streams 1000 --rounds 3 --processes 2 --replicas 1 2 4
    python -m benchmarks.api_processes --rows 250 --gap 0.2 --tokens 60 --rounds 1 --processes 1 --replicas 1 2 4

Starts a server with a scripted model for each number of API processes and of replicas, in turns, and reads that many
streams at once to their end. The server, its workers and the reader share the machine's cores, so tokens a second grow
with the number of processes only where cores are left for them; CPU time for each token tells what a machine with more
cores will do. With `--rows` a replica decodes no more than so many streams together, and the others wait: then tokens
a second grow with the number of replicas, as they do with devices, until the server's cores are full.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
import uvloop

START_SECONDS = 60


class Case(NamedTuple):
    processes: int
    replicas: int


@dataclass(frozen=True)
class Round:
    """Seconds of CPU by role, and what came."""

    chunks: int
    seconds: float
    cpu: dict[str, float]

    def each(self, role: str) -> float:
        """Milliseconds of CPU for a chunk."""
        return 1000 * self.cpu[role] / self.chunks


@contextlib.contextmanager
def served(case: Case, asked: argparse.Namespace) -> Iterator[tuple[psutil.Process, int]]:
    with tempfile.TemporaryDirectory(prefix="pippin-bench-") as home:
        # All rows of a replica take their tokens at once, as in a model's batch: a frame for each step.
        rule = {"say": [f"w{number:03} " for number in range(asked.tokens)], "gap": asked.gap / 2}
        (Path(home) / "live.script.json").write_text(json.dumps({"rules": [rule], "beat": asked.gap}))
        words = [
            "live.script.json",
            "--port",
            "0",
            "--api-processes",
            str(case.processes),
            "--replicas",
            str(case.replicas),
            "--log-level",
            "warning",
        ]
        words += ["--max-num-seqs", str(asked.rows or asked.streams), "--queue-size", str(asked.streams)]
        output = Path(home) / "output"
        with output.open("w") as file:
            server = subprocess.Popen(
                [sys.executable, "-m", "pippin", "serve", *words],
                env={**os.environ, "HOME": home},
                cwd=home,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            yield psutil.Process(server.pid), wait_until_ready(output)
        finally:
            server.terminate()
            server.wait(20)


def wait_until_ready(output: Path) -> int:
    """The port, once the model and all processes are there."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        text = output.read_text()
        if "is ready after" in text:
            port = int(text.partition("http://127.0.0.1:")[2].split()[0])
            others = httpx.get(f"http://127.0.0.1:{port}/health").json().get("api_processes", [])
            if all(each["state"] == "ready" for each in others):
                return port
        time.sleep(0.1)
    raise TimeoutError(output.read_text())


def role_of(process: psutil.Process, server: psutil.Process) -> str:
    if process == server:
        return "first"
    return "others" if "pippin.cli.answering" in process.cmdline() else "worker"


def cpu(server: psutil.Process) -> dict[str, float]:
    found = {"first": 0.0, "others": 0.0, "worker": 0.0}
    for process in (server, *server.children(recursive=True)):
        times = process.cpu_times()
        found[role_of(process, server)] += times.user + times.system
    return found


async def read(port: int, start: asyncio.Event) -> int:
    """Read one stream to its end; the chunks that came."""
    body = json.dumps(
        {
            "model": "live",
            "stream": True,
            "max_tokens": 100_000,
            "messages": [{"role": "user", "content": "go"}],
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await start.wait()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    writer.write(head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    chunks = 0
    while data := await reader.read(1 << 16):
        chunks += data.count(b"data: {")
    writer.close()
    return chunks


async def read_all(port: int, streams: int) -> int:
    start = asyncio.Event()
    reading = [asyncio.create_task(read(port, start)) for _ in range(streams)]
    await asyncio.sleep(1)
    start.set()
    return sum(await asyncio.gather(*reading))


def measured(case: Case, asked: argparse.Namespace) -> Round:
    with served(case, asked) as (server, port):
        before, started = cpu(server), time.monotonic()
        chunks = uvloop.run(read_all(port, asked.streams))
        seconds, after = time.monotonic() - started - 1, cpu(server)
    return Round(chunks, seconds, {role: after[role] - before[role] for role in after})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=100, help="of each answer")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between the tokens of a stream")
    parser.add_argument("--rows", type=int, help="that a replica decodes together; all streams if not given")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    rounds: dict[Case, list[Round]] = {Case(*each): [] for each in product(asked.processes, asked.replicas)}
    for number in range(asked.rounds):
        for case, done in rounds.items():
            done.append(measured(case, asked))
            show(f"round {number + 1}", case, done[-1:])
    for case, done in rounds.items():
        show("median", case, done)
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def show(name: str, case: Case, rounds: list[Round]) -> None:
    rate = statistics.median(each.chunks / each.seconds for each in rounds)
    parts = [
        f"{role} {statistics.median(each.each(role) for each in rounds):.4f}"
        for role in ("first", "others", "worker")
    ]
    api = statistics.median(each.each("first") + each.each("others") for each in rounds)
    print(
        f"{name}: {case.processes} processes, {case.replicas} replicas, {rate:.0f} tokens/s, ms of CPU a token: "
        f"{', '.join(parts)}; API {api:.4f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
