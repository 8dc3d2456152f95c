"""How much of the prompts of interleaved conversations is cached: one server, a front over several, and round robin.

    python -m benchmarks.prefix_routing --model MODEL --one URL --front URL --peers URL URL

All servers serve the same model; `--front` has the peers behind it. Several conversations take turns, each turn longer
than the last, in an order that has no pattern. The three ways run one after another, each on conversations of its own,
so that none finds what another has cached. Reported is the share of prompt tokens that the servers say were cached.
"""

import argparse
import json
import random
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

WORDS = "river stone market window letter garden silver engine harbour season lantern copper meadow thunder".split()


@dataclass
class Counted:
    prompt: int = 0
    cached: int = 0

    @property
    def ratio(self) -> float:
        return self.cached / max(1, self.prompt)


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


def play(name: str, address: Callable[[], str], model: str, conversations: int, turns: int) -> Counted:
    """Take the conversations' turns in a random order, the same for each way."""
    order = [number for number in range(conversations) for _ in range(turns)]
    random.Random(7).shuffle(order)
    histories: list[list[dict[str, str]]] = [[] for _ in range(conversations)]
    counted = Counted()
    for number in order:
        words = random.Random(f"{name} {number} {len(histories[number])}").choices(WORDS, k=80)
        histories[number].append({"role": "user", "content": " ".join(words)})
        text, prompt, cached = ask(address(), model, histories[number])
        histories[number].append({"role": "assistant", "content": text or "."})
        counted.prompt += prompt
        counted.cached += cached
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--one", required=True, help="a server by itself")
    parser.add_argument("--front", required=True, help="the server with `--peer`")
    parser.add_argument("--peers", required=True, nargs="+", help="the same peers, asked in turn")
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--turns", type=int, default=6)
    asked = parser.parse_args()
    turn = cycle(asked.peers)
    ways: dict[str, Callable[[], str]] = {
        "one server": lambda: asked.one,
        "front": lambda: asked.front,
        "round robin": lambda: next(turn),
    }
    found = {
        name: play(name, way, asked.model, asked.conversations, asked.turns) for name, way in ways.items()
    }
    for name, counted in found.items():
        share = counted.ratio / max(found["one server"].ratio, 1e-9)
        tokens = f"{counted.cached:7} of {counted.prompt:7} tokens cached"
        print(f"{name:12} {tokens}: {counted.ratio:.3f}  ({share:.2f} of one)")


if __name__ == "__main__":
    main()
