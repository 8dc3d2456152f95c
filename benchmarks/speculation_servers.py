"""What speculation brings whole servers: each with and without it, in turns, on the same work.

    python -m benchmarks.speculation_servers --model FOLDER --gguf FILE [--draft HEAD] [--clients 1 4] [--rounds 3]

`edit` has the model write a piece of code again with a name changed, by prompt lookup: Pippin's `--prompt-lookup`,
llama.cpp's `ngram-simple` over 3 tokens as here (its own default of 12 finds little in texts as short). `prose` has
it tell a story, by the draft head that `benchmarks.draft_head` has trained, which llama.cpp is not given. Shown are
tokens a second of all clients and of CPU time, with and without (medians), and the medians of the ratios of a round.
llama.cpp rounds activations and its answers are others, so that only its own two columns compare. CPU time is that of
the server's processes.
"""

import argparse
import contextlib
import json
import os
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import PEERS, free_port, serve
from benchmarks.speculation import Work, words_of

PROPOSED = "8"
NGRAMS = ("--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", PROPOSED)


class Rate(NamedTuple):
    """Tokens of all clients."""

    second: float
    cpu_second: float


@dataclass(frozen=True)
class Server:
    port: int
    process: int

    def rate(self, work: Work, clients: int, tokens: int) -> Rate:
        start, cpu = time.perf_counter(), cpu_seconds(self.process)
        with ThreadPoolExecutor(clients) as pool:
            count = sum(pool.map(lambda number: self._ask(work, number, tokens), range(clients)))
        seconds, spent = time.perf_counter() - start, cpu_seconds(self.process) - cpu
        return Rate(count / seconds, count / spent)

    def _ask(self, work: Work, number: int, tokens: int) -> int:
        """Gives the tokens of the answer."""
        body = {
            "model": "bench",
            "messages": [{"role": "user", "content": words_of(work, number)}],
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            count: int = json.load(response)["usage"]["completion_tokens"]
        return count


def cpu_seconds(process: int) -> float:
    """Of a process and all that it has started."""
    parents, ticks = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            number = int(entry.parent.name)
            parents[number], ticks[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {process}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks.get(each, 0) for each in family) / os.sysconf("SC_CLK_TCK")


def compare(name: str, model: Path, flags: tuple[str, ...], work: Work, given: argparse.Namespace) -> None:
    """Print a row for each number of clients."""
    peer = PEERS[name]
    with contextlib.ExitStack() as stack:
        both = []
        for more in ((), flags):
            port = free_port()
            process = stack.enter_context(serve(replace(peer, command=(*peer.command, *more)), model, port))
            both.append(Server(port, process.pid))
            both[-1].rate(work, 1, 16)  # weights are loaded, and the prompt of the first client is known
        for clients in given.clients:
            rounds = [[each.rate(work, clients, given.tokens) for each in both] for _ in range(given.rounds)]
            plain, other = (
                Rate(*(statistics.median(column) for column in zip(*rates, strict=True)))
                for rates in zip(*rounds, strict=True)
            )
            ratios = [
                statistics.median(other[place] / plain[place] for plain, other in rounds) for place in (0, 1)
            ]
            print(
                f"{work:6} {name:17} {clients:7}  {plain.second:6.0f} {other.second:6.0f} {ratios[0]:6.2f}"
                f"  {plain.cpu_second:6.0f} {other.cpu_second:6.0f} {ratios[1]:6.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("work   server            clients   plain   with  ratio  of CPU:  with  ratio", flush=True)
    lookup = ("--prompt-lookup", "--num-draft-tokens", PROPOSED)
    compare("pippin", given.model, lookup, "edit", given)
    if given.gguf is not None:
        compare("llama_cpp_native", given.gguf, ("--spec-type", "ngram-simple", *NGRAMS), "edit", given)
    if given.draft is not None:
        drafting = ("--draft-model-path", str(given.draft), "--num-draft-tokens", "3")
        compare("pippin", given.model, drafting, "prose", given)


if __name__ == "__main__":
    main()
