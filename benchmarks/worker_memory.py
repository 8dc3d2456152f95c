"""The memory of a worker beside the size of its model's folder: after the load, a long prompt, and 16 clients.

    python -m benchmarks.worker_memory --model FOLDER [--prompt 4000] [--clients 16]

*resident* and *most* are the worker's, as the system counts them. *share* is what is resident with the pages of
libraries shared out among the processes that have them, and *private* what no other process has. *KV* and *prefixes*
are what its caches hold of what is resident; *kept* is memory that MLX has for its next arrays. *ratio* is what is
resident without the caches, in folders: the target is 1.3. Each work is looked at right behind its end, and again once
the engine has rested.
"""

import argparse
import asyncio
import re
import signal
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.cpu_split import ROOT, Server, served
from benchmarks.load import run
from benchmarks.scenarios import SCENARIOS, Scenario, Turn, text, user

MB = 1e6
HELD = {
    "KV": r"^pippin_kv_bytes{[^}]*} (\S+)",
    "prefixes": r"^pippin_cache_bytes{[^}]*} (\S+)",
    "kept": r'^pippin_memory_bytes{[^}]*kind="cache"[^}]*} (\S+)',
}


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        return bytes(reply.read()).decode()


RESTED = 7  # seconds, after which the memory of what has ended is the system's again


def resident(pid: int) -> list[float]:
    """MB that are resident now, the most that ever were, the share of it, and what is private."""
    told = "".join(Path(f"/proc/{pid}/{name}").read_text() for name in ("status", "smaps_rollup"))
    patterns = (r"^VmRSS", r"^VmHWM", r"^Pss", r"^Private_\w+")
    found = (re.findall(rf"{pattern}:\s+(\d+) kB", told, re.MULTILINE) for pattern in patterns)
    return [sum(map(int, sizes)) * 1024 / MB for sizes in found]


def line(server: Server, moment: str, folder: float) -> str:
    sizes = resident(server.worker.pid)
    found = metrics(server.port)
    held = [
        sum(float(value) for value in re.findall(pattern, found, re.MULTILINE)) / MB
        for pattern in HELD.values()
    ]
    columns = [*sizes, *held]
    ratio = (sizes[0] - held[0] - held[1]) / folder
    return f"| {moment} | {' | '.join(f'{column:.0f}' for column in columns)} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--source", type=Path, default=ROOT, help="the code of another checkout")
    parser.add_argument("--prompt", type=int, default=4000, help="words of the long prompt, a token each")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("options", nargs="*", help="options of the server, behind --")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped on the way out
    folder = sum(path.stat().st_size for path in given.model.iterdir() if path.suffix == ".safetensors") / MB
    long = Scenario("long", "", lambda client: iter([Turn(user(text(given.prompt, client)), 8)]))
    works = [
        (f"a prompt of {given.prompt} words", long, 1),
        (f"{given.clients} clients", SCENARIOS["short"], given.clients),
    ]
    with served(
        given.source.resolve(), given.model.resolve(), ["--enable-metrics", *given.options]
    ) as server:
        print(f"folder: {folder:.0f} MB")
        print("| after | resident | most | share | private | KV | prefixes | kept | ratio |")
        print("|---|---|---|---|---|---|---|---|---|")
        print(line(server, "the load, and 4 tokens", folder), flush=True)
        for moment, scenario, clients in works:
            result = asyncio.run(run(f"http://127.0.0.1:{server.port}", "bench", scenario, clients, cell=1))
            if result.errors:
                raise RuntimeError(result.errors[0])
            print(line(server, moment, folder), flush=True)
            time.sleep(RESTED)
            print(line(server, f"{moment}, at rest", folder), flush=True)


if __name__ == "__main__":
    main()
