"""What saturates first with many clients over many machines: the real routing code, and arithmetic on measured costs.

    python -m benchmarks.many_clients [--clients 10000] [--machines 100] [--token-ms 0.16]

Conversations take turns in random order, and each turn is placed by `pippin.runtime.replicas.routing` as a front does,
with as many requests at once as `--at-once` says. No model runs: `--token-ms` is the CPU time that a front takes for a
token (`benchmarks.front_cost`), and `--tokens` how many a client reads in a second while it reads.
"""

import argparse
import random
import time
from collections import deque
from dataclasses import dataclass

from pippin.core.conversation import Message, Text
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from pippin.runtime.replicas.routing import Seen, choose, prefix_of


@dataclass(eq=False)
class Machine:
    running: int = 0


def conversation(client: int, turns: int) -> Generate:
    texts = (f"client {client} turn {turn} " + f"{client * 7919 + turn:08} " * 60 for turn in range(turns))
    messages = tuple(Message("user", (Text(text),)) for text in texts)
    return Generate(GenerationRequest(model="m", messages=messages))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1_000, help="requests that run at any time")
    parser.add_argument("--token-ms", type=float, default=0.16)
    parser.add_argument("--tokens", type=float, default=10.0, help="a second, of a client that reads")
    asked = parser.parse_args()
    order = [client for client in range(asked.clients) for _ in range(asked.turns)]
    random.Random(1).shuffle(order)
    places = [(Machine(), Seen()) for _ in range(asked.machines)]
    turns, homes = [0] * asked.clients, [-1] * asked.clients
    stayed = later = 0
    running: deque[Machine] = deque()
    hashing = placing = 0.0
    for client in order:
        turns[client] += 1
        task = conversation(client, turns[client])
        started = time.process_time()
        prefix = prefix_of(task)
        hashed = time.process_time()
        machine = choose(prefix, places)
        assert machine is not None
        number = next(number for number, place in enumerate(places) if place[0] is machine)
        places[number][1].add(prefix)
        hashing += hashed - started
        placing += time.process_time() - hashed
        later += turns[client] > 1
        stayed += homes[client] == number
        homes[client] = number
        machine.running += 1
        running.append(machine)
        if len(running) > asked.at_once:
            running.popleft().running -= 1
    requests = len(order)
    per_request = 1000 * (hashing + placing) / requests
    tokens = asked.at_once * asked.tokens
    busiest, mean = max(place[0].running for place in places), asked.at_once / asked.machines
    print(f"busiest machine at the end: {busiest} requests, mean {mean:.0f}")
    print(f"placing a request: {per_request:.3f} ms of CPU ({1000 * hashing / requests:.3f} of it hashing)")
    print(
        f"tokens: {tokens:.0f} a second x {asked.token_ms} ms = {tokens * asked.token_ms / 1000:.1f} cores of fronts"
    )


if __name__ == "__main__":
    main()
