"""Runs Pippin and its peers side by side: same weights, same type, same BLAS, in turns in one run.

    python -m benchmarks.compare --model FOLDER --peers pippin mlx_lm --scenarios short --clients 1 4 8 16 32
    python -m benchmarks.compare --model FOLDER --peers pippin --source CHECKOUT --rounds 5

All servers are up at once and one at a time is asked. Each cell is measured `--rounds` times, the peers taking turns,
and its median is shown. `--source` adds the code of another checkout, and its kernels if they are compiled there: what
was before a change. The table goes to the terminal as Markdown, every run to a JSON file under benchmarks/results/.
With `--warm` a server is asked once more, uncounted, right before each measurement: a system may take memory from
processes that wait while others are asked, which then costs whoever is quick the larger part of its time.
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.load import Result, run
from benchmarks.peers import PEERS, Peer, free_port, serve
from benchmarks.scenarios import SCENARIOS

WARMING = 100_000  # other prompts than those that are measured
RESULTS = Path(__file__).parent / "results"
Cell = tuple[str, int]  # scenario, clients
FIGURES = (
    ("tokens_per_second", "tokens/s", 1.0),
    ("first_median", "first ms", 1000.0),
    ("first_later_median", "first, later turns ms", 1000.0),
    ("gap_median", "gap ms", 1000.0),
    ("gap_p99", "gap p99 ms", 1000.0),
    ("cpu_per_token", "CPU ms/token", 1000.0),
    ("memory_mb", "MiB", 1.0),
)


@dataclass(frozen=True)
class Subject:
    """A running server under measure."""

    name: str
    url: str
    model: str
    pid: int

    def measure(self, scenario: str, clients: int, cell: int) -> Result:
        return asyncio.run(run(self.url, self.model, SCENARIOS[scenario], clients, self.pid, cell=cell))


def start(peer: Peer, model: Path, same_blas: bool, threads: int | None, stack: ExitStack) -> Subject:
    """A started server that has answered one request. It is stopped with the stack."""
    port = free_port()
    process = stack.enter_context(serve(peer, model, port, same_blas=same_blas, threads=threads))
    subject = Subject(peer.name, f"http://127.0.0.1:{port}", peer.model_name.format(model=model), process.pid)
    subject.measure("short", 1, 0)
    return subject


def measure(
    subjects: list[Subject], cells: list[Cell], rounds: int, *, warm: bool
) -> dict[str, dict[Cell, list[Result]]]:
    """All servers are up, one at a time is asked: what a machine's drift does to one of them, it does to all."""
    found: dict[str, dict[Cell, list[Result]]] = {subject.name: defaultdict(list) for subject in subjects}
    for place, (scenario, clients) in enumerate(cells):
        for turn in range(rounds):
            for subject in subjects if turn % 2 == 0 else reversed(subjects):
                number = 1 + place * rounds + turn
                if warm:
                    subject.measure(scenario, clients, WARMING + number)
                result = subject.measure(scenario, clients, number)
                found[subject.name][scenario, clients].append(result)
                print(f"  {subject.name:10} {scenario:10} {clients:3}  {brief(result)}", flush=True)
    return found


def brief(result: Result) -> str:
    error = f"  {len(result.errors)} ERRORS {result.errors[0][:120]}" if result.errors else ""
    first = f"{1000 * result.first_median:.0f} ms" if result.first_median else "-"
    return f"{result.tokens_per_second:8.1f} tokens/s, first {first}, {result.seconds:.1f} s{error}"


def middle(results: list[Result], figure: str) -> float | None:
    values = [value for result in results if (value := getattr(result, figure)) is not None]
    return statistics.median(values) if values else None


def table(found: dict[str, dict[Cell, list[Result]]], cells: list[Cell]) -> str:
    lines = [
        "| scenario | clients | server | " + " | ".join(title for _, title, _ in FIGURES) + " | errors |"
    ]
    lines.append("|" + "---|" * (len(FIGURES) + 4))
    for scenario, clients in cells:
        for name, by_cell in found.items():
            results = by_cell[scenario, clients]
            figures = [
                f"{value * scale:.3g}" if (value := middle(results, figure)) is not None else "-"
                for figure, _, scale in FIGURES
            ]
            errors = sum(len(result.errors) for result in results)
            lines.append(f"| {scenario} | {clients} | {name} | " + " | ".join(figures) + f" | {errors} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder that all servers read")
    parser.add_argument("--gguf", type=Path, help="the same weights as a file, for llama.cpp")
    parser.add_argument("--llama-threads", type=int, help="of llama.cpp; as many as cores unless given")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["pippin", "mlx_lm"])
    parser.add_argument("--source", type=Path, help="another checkout of Pippin, which is a peer too")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=["short"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--as-shipped", action="store_true", help="leave the peers the BLAS they come with")
    parser.add_argument("--warm", action="store_true", help="ask once, uncounted, before each measurement")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are stopped on the way out
    peers = [PEERS[name] for name in options.peers]
    if options.source is not None:
        peers.append(replace(PEERS["pippin"], name=options.source.name, source=options.source.resolve()))
    cells = [(scenario, clients) for scenario in options.scenarios for clients in options.clients]
    with ExitStack() as stack:
        subjects = [
            start(
                peer,
                (options.gguf if peer.gguf else options.model).resolve(),
                not options.as_shipped,
                options.llama_threads,
                stack,
            )
            for peer in peers
        ]
        found = measure(subjects, cells, options.rounds, warm=options.warm)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"compare-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(
        json.dumps(
            [
                {"peer": name, **asdict(result)}
                for name, by in found.items()
                for rs in by.values()
                for result in rs
            ]
        )
    )
    print(f"\n{table(found, cells)}\n\n{path}")


if __name__ == "__main__":
    main()
