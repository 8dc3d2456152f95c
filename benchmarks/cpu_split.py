"""Which process takes the CPU time of a token: the server that clients speak to, or the worker that computes.

    python -m benchmarks.cpu_split --model FOLDER_OR_SCRIPT [--streams 1 16] [--rounds 5] [--source FOLDER]

Each round asks for as many streams at once, each with a prompt of its own. CPU time hardly depends on what else the
machine does; seconds do. The least of the rounds is shown, in milliseconds for each token. `--source` serves with
the code of another checkout, beside this one, in turns: what is compared was measured in the same minutes.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.load import run
from benchmarks.peers import free_port, wait_until_up
from benchmarks.scenarios import WORDS, Scenario, Turn, user

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Spent:
    """What one round took: CPU seconds of both processes, seconds of the clock, tokens."""

    tokens: int
    seconds: float
    server_user: float
    server_system: float
    worker_user: float
    worker_system: float

    def per_token(self) -> list[float]:
        """Milliseconds of CPU for each token: the server's, the worker's, user and system apart, and all."""
        parts = self.server_user, self.server_system, self.worker_user, self.worker_system
        return [1000 * part / self.tokens for part in (*parts, sum(parts))]


@dataclass(frozen=True)
class Server:
    name: str
    port: int
    api: psutil.Process
    worker: psutil.Process

    def cpu_times(self) -> list[float]:
        return [part for process in (self.api, self.worker) for part in process.cpu_times()[:2]]

    def measure(self, scenario: Scenario, streams: int, cell: int) -> Spent:
        before = self.cpu_times()
        result = asyncio.run(run(f"http://127.0.0.1:{self.port}", "bench", scenario, streams, cell=cell))
        if result.errors:
            raise RuntimeError(result.errors[0])
        parts = [after - earlier for after, earlier in zip(self.cpu_times(), before, strict=True)]
        return Spent(result.completion_tokens, result.seconds, *parts)


@contextlib.contextmanager
def served(source: Path, model: Path, options: list[str]) -> Iterator[Server]:
    """A server with the code of a checkout, while the block lasts. It has answered once."""
    port = free_port()
    command = [sys.executable, "-m", "pippin", "serve", str(model), "--port", str(port)]
    places = f"{source / 'src'}:{source / 'kernels'}"
    process = subprocess.Popen(
        [*command, "--served-model-name", "bench", *options],
        env=dict(os.environ, HF_HUB_OFFLINE="1", PYTHONPATH=places),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_up(port, process, 300)
        asyncio.run(run(f"http://127.0.0.1:{port}", "bench", asked(4), 1))
        api = psutil.Process(process.pid)
        [worker] = [each for each in api.children() if "pippin.worker" in each.cmdline()]
        yield Server(source.name, port, api, worker)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def asked(tokens: int) -> Scenario:
    """A short prompt, another one for each client, and an answer of so many tokens or words."""

    def turns(client: int) -> Iterator[Turn]:
        words = " ".join(WORDS[(client + place) % len(WORDS)] for place in range(max(20, tokens)))
        text = f"Number {client}. Write a long story about the {WORDS[client % len(WORDS)]}."
        yield Turn(user(words if tokens > 1000 else text), tokens, extra=(("ignore_eos", True),))

    return Scenario("asked", "", turns)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="a folder, or a script of the scripted model"
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--source", type=Path, action="append", help="another checkout, beside this one")
    parser.add_argument("options", nargs="*", help="options of the server, behind --")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped on the way out
    with ExitStack() as stack:
        servers = [
            stack.enter_context(served(source.resolve(), given.model.resolve(), given.options))
            for source in (ROOT, *(given.source or ()))
        ]
        print("| code | streams | server ms | system | worker ms | system | both ms | tokens/s |")
        print("|---|---|---|---|---|---|---|---|")
        for place, streams in enumerate(given.streams):
            compare(
                servers,
                asked(given.tokens),
                streams,
                range(1 + place * given.rounds, 1 + (place + 1) * given.rounds),
            )


def compare(servers: list[Server], scenario: Scenario, streams: int, cells: range) -> None:
    """Measure all in turns, and print a line for each."""
    found: dict[Server, list[Spent]] = {server: [] for server in servers}
    for cell in cells:
        for server in servers if cell % 2 else reversed(servers):
            found[server].append(spent := server.measure(scenario, streams, cell))
            print(
                f"  {server.name}, {streams} streams: {spent.per_token()[-1]:.3f} ms",
                file=sys.stderr,
                flush=True,
            )
    for server, rounds in found.items():
        api, api_system, worker, worker_system, both = map(
            min, zip(*(each.per_token() for each in rounds), strict=True)
        )
        speed = max(each.tokens / each.seconds for each in rounds)
        print(
            f"| {server.name} | {streams} | {api + api_system:.3f} | {api_system:.3f} "
            f"| {worker + worker_system:.3f} | {worker_system:.3f} | {both:.3f} | {speed:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
