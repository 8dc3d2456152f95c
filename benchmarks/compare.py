"""Runs Pippin and its peers side by side: same weights, same type, same BLAS, one after the other in one run.

    python -m benchmarks.compare --model FOLDER --peers pippin mlx_lm --scenarios short --clients 1 4 8 16 32

Each cell is measured `--rounds` times, the peers taking turns, and its median is shown. The table goes to the
terminal as Markdown, every run to a JSON file under benchmarks/results/.
"""

import argparse
import asyncio
import json
import signal
import socket
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from benchmarks.load import Result, run
from benchmarks.peers import PEERS, Peer, serve
from benchmarks.scenarios import SCENARIOS

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


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def measure(peer: Peer, model: Path, cells: list[Cell], same_blas: bool) -> dict[Cell, Result]:
    """One start of a server and one run of every cell, after a warm-up request."""
    port = free_port()
    name = peer.model_name.format(model=model)
    url = f"http://127.0.0.1:{port}"
    results: dict[Cell, Result] = {}
    with serve(peer, model, port, same_blas=same_blas) as process:
        asyncio.run(run(url, name, SCENARIOS["short"], 1))
        for place, (scenario, clients) in enumerate(cells):
            results[scenario, clients] = asyncio.run(
                run(url, name, SCENARIOS[scenario], clients, process.pid, cell=place + 1)
            )
            print(
                f"  {peer.name:10} {scenario:10} {clients:3}  {brief(results[scenario, clients])}", flush=True
            )
    return results


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
    parser.add_argument("--gguf", type=Path, help="the same weights as a file, for llama_cpp")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["pippin", "mlx_lm"])
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=["short"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--as-shipped", action="store_true", help="leave the peers the BLAS they come with")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are stopped on the way out
    cells = [(scenario, clients) for scenario in options.scenarios for clients in options.clients]
    found: dict[str, dict[Cell, list[Result]]] = {name: defaultdict(list) for name in options.peers}
    for round_number in range(options.rounds):
        print(f"round {round_number + 1}", flush=True)
        for name in options.peers:
            path = options.gguf if PEERS[name].gguf else options.model
            results = measure(PEERS[name], path.resolve(), cells, not options.as_shipped)
            for cell, result in results.items():
                found[name][cell].append(result)
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
