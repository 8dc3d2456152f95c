"""What speculation brings a server over a minute and more, under clients that each ask again when they are answered.

    python -m benchmarks.speculation_minutes --model FOLDER [--draft HEAD] [--clients 1 2 4 8] [--seconds 60]
        [--turns 2] [--work edit prose mixed] [-- OPTIONS OF BOTH SERVERS]

Two servers of the same model, one of which speculates (by prompt lookup, or with `--draft` by a head), have turns in
which all clients ask one of them, while the other rests; `--seconds` is how long each is asked in all. Requests begin
and end whenever they do, so that slots are filled again. `edit` has the model write a piece of code again with a name
changed, each time another piece; `prose` for a story; `mixed` for one after the other. Shown are the tokens of a
second, by the clock and of the CPU time of the model's process, of which the latter tells on a busy machine, too; the
least ratio of CPU time in a turn; by how much the turns without proposals differ among themselves, the fastest over the
slowest, which is the noise in that ratio; and what became of proposals. 0.97 is what `step/speculation/pace.py`
promises of a minute.
"""

import argparse
import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from benchmarks.peers import PEERS, free_port, serve
from benchmarks.speculation import Work, words_of

PROPOSED = "8"

Traffic = Literal["edit", "prose", "mixed"]
WORKS: dict[Traffic, tuple[Work, ...]] = {
    "edit": ("edit",),
    "prose": ("prose",),
    "mixed": ("edit", "prose"),
}
"""What is asked for of each piece of code, one after the other."""


def questions(traffic: Traffic) -> Iterator[tuple[Work, int]]:
    """Without end: the same ones for each server."""
    for number in itertools.count():
        for work in WORKS[traffic]:
            yield work, number


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

    def ask(self, work: Work, number: int, tokens: int) -> Answer:
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
            usage = json.load(response)["usage"]
        told = usage.get("completion_tokens_details") or {}
        accepted = told.get("accepted_prediction_tokens") or 0
        return Answer(
            usage["completion_tokens"], accepted + (told.get("rejected_prediction_tokens") or 0), accepted
        )


def cpu_seconds(process: int) -> float:
    """Of all that a process has started and is still there."""
    parents, ticks = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rpartition(")")[2].split()
            number = int(entry.parent.name)
            parents[number], ticks[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {process}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks.get(each, 0) for each in family - {process}) / os.sysconf("SC_CLK_TCK")


@dataclass
class Turn:
    tokens: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    proposed: int = 0
    accepted: int = 0

    def __add__(self, other: "Turn") -> "Turn":
        return Turn(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.cpu + other.cpu,
            self.proposed + other.proposed,
            self.accepted + other.accepted,
        )


@dataclass
class Asked:
    """A server, and what its clients ask for next."""

    server: Server
    next: Iterator[tuple[Work, int]] = field(default_factory=lambda: questions("edit"))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def turn(self, clients: int, seconds: float, tokens: int) -> Turn:
        """From the first request to the end of the last that began within these seconds."""
        start, cpu = time.perf_counter(), self._cpu()
        with ThreadPoolExecutor(clients) as pool:
            parts = list(pool.map(lambda _: self._client(start + seconds, tokens), range(clients)))
        whole = sum(parts, Turn())
        whole.seconds, whole.cpu = time.perf_counter() - start, self._cpu() - cpu
        return whole

    def _client(self, end: float, tokens: int) -> Turn:
        found = Turn()
        while time.perf_counter() < end:
            with self.lock:
                work, number = next(self.next)
            answer = self.server.ask(work, number, tokens)
            found += Turn(answer.count, proposed=answer.proposed, accepted=answer.accepted)
        return found

    def _cpu(self) -> float:
        return cpu_seconds(self.server.process)


def compare(both: list[Asked], traffic: Traffic, clients: int, given: argparse.Namespace) -> None:
    """Print a row."""
    for each in both:
        each.next = questions(traffic)
    turns = [
        [each.turn(clients, given.seconds / given.turns, given.tokens) for each in both]
        for _ in range(given.turns)
    ]
    plain, other = (sum(column, Turn()) for column in zip(*turns, strict=True))
    rates = [(each.tokens / each.seconds, each.tokens / each.cpu) for each in (plain, other)]
    clock, cpu = (after / before for before, after in zip(*rates, strict=True))
    least = min(other.tokens / other.cpu / (plain.tokens / plain.cpu) for plain, other in turns)
    alone = [plain.tokens / plain.cpu for plain, _ in turns]
    share = f"{other.accepted / other.proposed:.0%} of {other.proposed}" if other.proposed else "-"
    print(
        f"{traffic:7} {clients:7}  {rates[0][0]:6.0f} {rates[1][0]:6.0f} {clock:6.2f}"
        f"  {rates[0][1]:7.0f} {rates[1][1]:6.0f} {cpu:6.2f} {least:6.2f} {max(alone) / min(alone):7.2f}  {share}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--work", nargs="+", choices=list(WORKS), default=["edit", "prose"])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("options", nargs="*", help="of both servers")
    given = parser.parse_args()
    # So that the servers end with it, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    lookup = ("--prompt-lookup", "--num-draft-tokens", PROPOSED)
    drafting = ("--draft-model-path", str(given.draft), "--num-draft-tokens", "3")
    peer = PEERS["pippin"]
    with contextlib.ExitStack() as stack:
        both = []
        for more in ((), lookup if given.draft is None else drafting):
            port = free_port()
            asked = replace(peer, command=(*peer.command, *given.options, *more))
            process = stack.enter_context(serve(asked, given.model, port))
            both.append(Asked(Server("bench", port, process.pid)))
            both[-1].server.ask("prose", 0, 16)  # weights are loaded
        print(
            "work    clients   plain   with  ratio   of CPU:   with  ratio  least  spread  accepted",
            flush=True,
        )
        for traffic in given.work:
            for clients in given.clients:
                compare(both, traffic, clients, given)


if __name__ == "__main__":
    main()
