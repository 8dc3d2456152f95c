"""What speculation brings whole servers: each with and without it, in turns, on the same work.

    python -m benchmarks.speculation_servers --model FOLDER --gguf FILE [--draft HEAD] [--clients 1 2 4 8] [--rounds 3]

`--clients 1 4 --rounds 2` without a head takes some five minutes on two cores that nobody else wants; where others do,
`--threads 1` keeps llama.cpp's threads from waiting for each other.

`edit` has the model write a piece of code again with a name changed, by prompt lookup: Pippin's `--prompt-lookup`,
llama.cpp's `ngram-simple` over 3 tokens as here (its own default of 12 finds little in texts as short). `again` asks
for the same in other words after another conversation has had the answer to `edit`, of llama.cpp by `ngram-mod`, which
remembers other conversations too (over 3 tokens as well, where its default is 24). `prose` has it tell a story, by a
draft head (`benchmarks.draft_head` trains one), of Pippin and of mlx-vlm, whose server has no lookup; llama.cpp reads
no such heads. Shown are tokens a second of all clients and of CPU time, with and without (medians), the medians of the
ratios of a round, and the share of proposals that was accepted, where the server tells it. llama.cpp rounds activations
and its answers are others, so that only its own columns compare. CPU time is that of the server's processes.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import PEERS, free_port, serve
from benchmarks.speculation import Work, words_of

PROPOSED = "8"
SIMPLE = (
    "--spec-type",
    "ngram-simple",
    "--spec-ngram-simple-size-n",
    "3",
    "--spec-ngram-simple-size-m",
    PROPOSED,
)
REMEMBERING = (
    *("--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "3"),
    *("--spec-ngram-mod-n-min", "1", "--spec-ngram-mod-n-max", PROPOSED),
)
LOOKUPS: dict[Work, tuple[str, ...]] = {"edit": SIMPLE, "again": REMEMBERING}
"""What llama.cpp is started with for this work."""


class Rate(NamedTuple):
    """Tokens of all clients."""

    second: float
    cpu_second: float


class Answer(NamedTuple):
    """Tokens; of proposals as far as the server tells of them."""

    count: int
    proposed: int
    accepted: int


@dataclass
class Server:
    name: str  # of the model
    port: int
    process: int
    proposed: int = 0
    accepted: int = 0

    def rate(self, work: Work, numbers: range, tokens: int) -> Rate:
        """A client for each number, of which each asks for something else."""
        if work == "again":
            self._all("edit", numbers, tokens)
        start, cpu = time.perf_counter(), cpu_seconds(self.process)
        answers = self._all(work, numbers, tokens)
        seconds, spent = time.perf_counter() - start, cpu_seconds(self.process) - cpu
        self.proposed += sum(each.proposed for each in answers)
        self.accepted += sum(each.accepted for each in answers)
        count = sum(each.count for each in answers)
        return Rate(count / seconds, count / spent)

    def _all(self, work: Work, numbers: range, tokens: int) -> list[Answer]:
        with ThreadPoolExecutor(len(numbers)) as pool:
            return list(pool.map(lambda number: self._ask(work, number, tokens), numbers))

    def _ask(self, work: Work, number: int, tokens: int) -> Answer:
        body = {
            "model": self.name,
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
            reply = json.load(response)
        usage, timings = reply["usage"], reply.get("timings", {})
        told = usage.get("completion_tokens_details") or {}
        accepted = told.get("accepted_prediction_tokens") or timings.get("draft_n_accepted") or 0
        rejected = told.get("rejected_prediction_tokens") or 0
        return Answer(usage["completion_tokens"], timings.get("draft_n") or accepted + rejected, accepted)


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
    """Print a row for each number of clients, or why there is none."""
    try:
        _compare(name, model, flags, work, given)
    except urllib.error.HTTPError as error:
        print(
            f"{work:6} {name:17} answers {error.code} {error.reason} (see its log in .cache/bench)",
            flush=True,
        )


def _compare(name: str, model: Path, flags: tuple[str, ...], work: Work, given: argparse.Namespace) -> None:
    peer = PEERS[name]
    with contextlib.ExitStack() as stack:
        both = []
        for more in ((), flags):
            port = free_port()
            asked = replace(peer, command=(*peer.command, *more))
            process = stack.enter_context(serve(asked, model, port, threads=given.threads))
            both.append(Server(peer.model_name.format(model=model), port, process.pid))
            both[-1].rate(work, range(1), 16)  # weights are loaded
        for clients in given.clients:
            both[1].proposed = both[1].accepted = 0
            starts = range(1000 * clients, 1000 * clients + 10 * given.rounds, 10)
            rounds = [
                [each.rate(work, range(start, start + clients), given.tokens) for each in both]
                for start in starts
            ]
            plain, other = (
                Rate(*(statistics.median(column) for column in zip(*rates, strict=True)))
                for rates in zip(*rounds, strict=True)
            )
            ratios = [
                statistics.median(other[place] / plain[place] for plain, other in rounds) for place in (0, 1)
            ]
            print(
                f"{work:6} {name:17} {clients:7}  {plain.second:6.0f} {other.second:6.0f} {ratios[0]:6.2f}"
                f"  {plain.cpu_second:6.0f} {other.cpu_second:6.0f} {ratios[1]:6.2f}  {_share(both[1])}",
                flush=True,
            )


def _share(server: Server) -> str:
    return f"{server.accepted / server.proposed:6.0%} of {server.proposed}" if server.proposed else "not told"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument(
        "--mlx-vlm-model", type=Path, help="the model as mlx-vlm is to be given it, in float32 say"
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--work", nargs="+", choices=("edit", "again", "prose"), default=["edit", "again", "prose"]
    )
    parser.add_argument("--threads", type=int, help="of llama.cpp, as many as cores otherwise")
    given = parser.parse_args()
    # So that the servers end with it, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(
        "work   server            clients   plain   with  ratio  of CPU:  with  ratio  accepted", flush=True
    )
    lookup = ("--prompt-lookup", "--num-draft-tokens", PROPOSED)
    for work, theirs in LOOKUPS.items():
        if work not in given.work:
            continue
        compare("pippin", given.model, lookup, work, given)
        if given.gguf is not None:
            compare("llama_cpp_native", given.gguf, theirs, work, given)
    if given.draft is not None and "prose" in given.work:
        block = ("--draft-model", str(given.draft), "--draft-kind", "eagle3", "--draft-block-size", "4")
        compare("mlx_vlm", given.mlx_vlm_model or given.model, block, "prose", given)
        drafting = ("--draft-model-path", str(given.draft), "--num-draft-tokens", "3")
        compare("pippin", given.model, drafting, "prose", given)


if __name__ == "__main__":
    main()
