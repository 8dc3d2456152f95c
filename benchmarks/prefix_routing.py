"""How much of the prompts of interleaved conversations is cached: by one server, and by several ways to have two.

    python -m benchmarks.prefix_routing --model FOLDER --ways one replicas robin
    python -m benchmarks.prefix_routing --model FOLDER --ways one cluster --cluster HOST:PORT

Each way is started, asked and ended before the next. Several conversations take turns, each turn longer than the last,
in an order that has no pattern, some at a time. Reported is the share of prompt tokens that the server read from its
cache.
"""

import argparse
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

WORDS = "river stone market window letter garden silver engine harbour season lantern copper meadow thunder".split()
START_SECONDS = 180
REPLICA = 1_500_000_000  # bytes, of one in a cluster


@dataclass
class Served:
    """Where a way is asked, and where its server prints."""

    address: Callable[[], str]
    output: Path


@contextlib.contextmanager
def serving(*words: str) -> Iterator[Served]:
    """A server until the end of the block, once its model is there."""
    with tempfile.TemporaryDirectory(prefix="pippin-bench-") as folder:
        output = Path(folder) / "output"
        with output.open("w") as file:
            server = subprocess.Popen(
                [sys.executable, "-m", "pippin", "serve", *words, "--port", "0", "--enable-metrics"],
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            address = wait_until_ready(output)
            yield Served(lambda: address, output)
        finally:
            server.terminate()
            server.wait(30)


def wait_until_ready(output: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        text = output.read_text()
        found = re.search(r"serves at (http://\S+)", text)
        if found and "is ready after" in text:
            with urllib.request.urlopen(f"{found[1]}/v1/models", timeout=10) as reply:
                models = json.load(reply)["data"]
            if models:
                return found[1]
        time.sleep(0.1)
    raise TimeoutError(output.read_text())


@contextlib.contextmanager
def way(name: str, model: str, cluster: str) -> Iterator[Served]:
    """One of the ways to serve the model."""
    placed = ("--cluster", cluster, "--memory-bytes", str(REPLICA), "--replicas", "2")
    words: dict[str, tuple[str, ...]] = {
        "one": (),
        "replicas": ("--replicas", "2"),
        "cluster": placed,
    }
    if name in words:
        with serving(model, *words[name]) as served:
            yield served
        return
    with serving(model) as first, serving(model) as second:
        turns = cycle((first.address(), second.address()))
        yield Served(lambda: next(turns), first.output)


@dataclass
class Play:
    """The conversations, and what was counted of them."""

    conversations: int
    turns: int
    prompt: int = 0
    cached: int = 0
    histories: list[list[dict[str, str]]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.histories = [[] for _ in range(self.conversations)]
        self.left = [number for number in range(self.conversations) for _ in range(self.turns)]
        random.Random(7).shuffle(self.left)
        self._changed = threading.Condition()

    @property
    def ratio(self) -> float:
        return self.cached / max(1, self.prompt)

    def run(self, served: Served, at_once: int) -> None:
        with urllib.request.urlopen(f"{served.address()}/v1/models", timeout=10) as reply:
            model = json.load(reply)["data"][0]["id"]
        threads = [threading.Thread(target=self._take_turns, args=(served, model)) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.left:
            raise RuntimeError("a request failed")

    def _take_turns(self, served: Served, model: str) -> None:
        while (number := self._next()) is not None:
            history = self.histories[number]
            words = random.Random(f"{number} {len(history)}").choices(WORDS, k=80)
            history.append({"role": "user", "content": " ".join(words)})
            text, prompt, cached = ask(served.address(), model, history)
            history.append({"role": "assistant", "content": text or "."})
            with self._changed:
                self.busy.discard(number)
                self.prompt += prompt
                self.cached += cached
                self._changed.notify_all()

    def _next(self) -> int | None:
        """The conversation whose turn it is; one takes one turn at a time."""
        with self._changed:
            while self.left:
                for place, number in enumerate(self.left):
                    if number not in self.busy:
                        self.busy.add(number)
                        del self.left[place]
                        return number
                self._changed.wait()
        return None


def ask(address: str, model: str, messages: list[dict[str, str]]) -> tuple[str, int, int]:
    """The answer, and the prompt's tokens and those of them that were cached."""
    body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        answer = json.load(reply)
    usage = answer["usage"]
    text = answer["choices"][0]["message"]["content"]
    return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ways = ["one", "replicas", "robin", "cluster"]
    parser.add_argument("--model", required=True)
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways[:3])
    parser.add_argument("--cluster", default="auto", help="of `pippin join`, with room for two replicas")
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=3, help="requests")
    asked = parser.parse_args()
    found: dict[str, Play] = {}
    for name in asked.ways:
        found[name] = Play(asked.conversations, asked.turns)
        with way(name, asked.model, asked.cluster) as served:
            found[name].run(served, asked.at_once)
        own = found[name]
        share = own.ratio / max(found[asked.ways[0]].ratio, 1e-9)
        print(
            f"{name:18} {own.cached:6} of {own.prompt:6} prompt tokens cached: {own.ratio:.3f}, "
            f"{share:.2f} of {asked.ways[0]}",
            flush=True,
        )
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
