"""What saturates first where ten thousand clients talk to a hundred machines: a simulation with the measured costs.

    python -m benchmarks.saturation [--clients 10000] [--machines 100] [--token-ms 0.086] [--servers 1 2 4] [--scatter]

Clients take turns in conversations: they read an answer, think, and ask again with all that was said. Each belongs to a
server, a process with one core, which places the turn on one of its machines by the router's own code. With
`--scatter` any server gets any turn, as from a balancer that knows nothing of conversations. A machine computes what
its cache lacks of the prompt and then writes with all others in its batch. What it writes costs the server `--token-ms`
for each token, and the network a frame for each step.

The figures of a machine are assumed, those of a server measured; every one is an option. Nothing of a model runs.
"""

import argparse
import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import simpy

from pippin.runtime.replicas.routing import BLOCK, Prefix, Seen, choose

LETTERS = 4  # of text in a token
STEPS = 4  # that a machine takes between two looks at who has come
FRAME = 60  # bytes of a frame beside its tokens, TLS and TCP
TOKEN = 30  # bytes of a token in a frame


@dataclass(eq=False)
class Turn:
    conversation: tuple[int, int]  # the client, and which of its conversations
    prompt: int  # tokens
    left: int  # tokens to be written
    asked: float
    done: simpy.Event
    uncached: int = 0
    first: float | None = None


@dataclass(eq=False)
class Machine:
    """A replica: prompts one after the other, then all turns of the batch in steps."""

    world: "World"
    server: "Server"
    running: int = 0  # as routing sees it
    waiting: deque[Turn] = field(default_factory=deque)
    batch: list[Turn] = field(default_factory=list)
    cached: OrderedDict[tuple[int, int], int] = field(default_factory=OrderedDict)  # tokens of conversations
    held: int = 0  # tokens in all
    busy: float = 0.0
    woken: simpy.Event | None = None

    def take(self, turn: Turn) -> None:
        asked = self.world.asked
        shared = asked.system if self.cached else 0  # what all conversations begin with
        mine = self.cached.pop(turn.conversation, 0)
        turn.uncached = turn.prompt - min(max(mine, shared), turn.prompt - 1)
        self.cached[turn.conversation] = turn.prompt + turn.left
        self.held += turn.prompt + turn.left - mine
        while self.held > asked.cache_tokens:
            self.held -= self.cached.popitem(last=False)[1]
        self.waiting.append(turn)
        if self.woken is not None and not self.woken.triggered:
            self.woken.succeed()

    def run(self) -> Iterator[simpy.Event]:
        world, asked = self.world, self.world.asked
        while True:
            if not self.waiting and not self.batch:
                self.woken = world.time.event()
                yield self.woken
            if self.waiting and len(self.batch) < asked.batch:
                turn = self.waiting.popleft()
                self.batch.append(turn)
                yield self.work(turn.uncached / asked.prompt_rate)
                continue
            yield self.work(STEPS * (asked.step_ms + asked.row_ms * len(self.batch)) / 1000)
            written = [(turn, min(STEPS, turn.left)) for turn in self.batch]
            for turn, count in written:
                turn.left -= count
            self.batch = [turn for turn in self.batch if turn.left]
            self.server.pass_on(written, self)

    def work(self, seconds: float) -> simpy.Event:
        self.busy += seconds
        return self.world.time.timeout(seconds)


@dataclass(eq=False)
class Server:
    """A server: one core, which does one thing after the other."""

    world: "World"
    free_at: float = 0.0
    given: float = 0.0  # seconds of work, done or not
    tokens: int = 0  # that have left
    bytes: int = 0
    machines: list[tuple[Machine, Seen]] = field(default_factory=list)

    def spend(self, seconds: float) -> float:
        """Do some work behind what waits already; seconds until it is done."""
        now = self.world.time.now
        self.free_at = max(self.free_at, now) + seconds
        self.given += seconds
        return self.free_at - now

    @property
    def done(self) -> float:
        """Seconds of work until now."""
        return self.given - max(0.0, self.free_at - self.world.time.now)

    def place(self, turn: Turn) -> None:
        prefix = prefix_of(turn.conversation, turn.prompt)
        machine = choose(prefix, self.machines)
        assert machine is not None
        next(seen for each, seen in self.machines if each is machine).add(prefix)
        machine.running += 1
        machine.take(turn)

    def pass_on(self, written: list[tuple[Turn, int]], machine: Machine) -> None:
        count = sum(tokens for _, tokens in written)
        self.bytes += STEPS * FRAME + count * TOKEN
        self.world.time.process(
            self._sent(written, machine, self.spend(count * self.world.asked.token_ms / 1000))
        )

    def _sent(self, written: list[tuple[Turn, int]], machine: Machine, delay: float) -> Iterator[simpy.Event]:
        yield self.world.time.timeout(delay)
        for turn, count in written:
            self.tokens += count
            if turn.first is None:
                turn.first = self.world.time.now
            if not turn.left and not turn.done.triggered:
                machine.running -= 1
                turn.done.succeed()


def prefix_of(conversation: tuple[int, int], tokens: int) -> Prefix:
    """Equal for turns of one conversation as far as they agree, as the hashes of their blocks are."""
    return tuple(b"%d %d %d" % (*conversation, number) for number in range(tokens * LETTERS // BLOCK))


class World:
    def __init__(self, asked: Any, servers: int) -> None:
        self.asked = asked
        self.time = simpy.Environment()
        self.dice = random.Random(1)
        self.servers = [Server(self) for _ in range(servers)]
        for number in range(asked.machines):
            server = self.servers[number % servers]
            machine = Machine(self, server)
            server.machines.append((machine, Seen()))
            self.time.process(machine.run())
        self.turns: list[Turn] = []
        for client in range(asked.clients):
            self.time.process(self.client(client))

    def client(self, number: int) -> Iterator[simpy.Event]:
        asked, dice = self.asked, self.dice
        home = self.servers[number % len(self.servers)]
        yield self.time.timeout(dice.uniform(0, asked.seconds / 4))
        said, begun = asked.system, 0
        while True:
            server = dice.choice(self.servers) if asked.scatter else home
            answer = max(1, round(dice.expovariate(1 / asked.answer)))
            said += asked.question
            turn = Turn((number, begun), said, answer, self.time.now, self.time.event())
            yield self.time.timeout(server.spend(asked.request_ms / 1000))
            server.place(turn)
            yield turn.done
            self.turns.append(turn)
            said += answer
            if said > asked.longest:
                said, begun = asked.system, begun + 1
            yield self.time.timeout(dice.expovariate(1 / asked.think))

    def measure(self) -> str:
        """Run, and tell of the second half."""
        asked = self.asked
        self.time.run(asked.seconds / 2)
        machines = [machine for server in self.servers for machine, _ in server.machines]
        for machine in machines:
            machine.busy = 0.0
        for server in self.servers:
            server.given -= server.done
            server.tokens = server.bytes = 0
        self.turns.clear()
        self.time.run(asked.seconds)
        span = asked.seconds / 2
        firsts = [turn.first - turn.asked for turn in self.turns if turn.first is not None]
        prompts = sum(turn.prompt for turn in self.turns)
        cached = 1 - sum(turn.uncached for turn in self.turns) / max(prompts, 1)
        late = quantiles(firsts, n=100)[98] if len(firsts) > 1 else 0.0
        cores = max(server.done for server in self.servers) / span
        used = sum(machine.busy for machine in machines) / span / len(machines)
        tokens = sum(server.tokens for server in self.servers) / span
        megabits = 8 * sum(server.bytes for server in self.servers) / span / 1e6
        return (
            f"| {len(self.servers)} | {tokens:,.0f} | {min(cores, 1):.0%} | {used:.0%} | {cached:.2f} | "
            f"{median(firsts):.2f} s, {late:.1f} s | {megabits:.0f} Mbit/s |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--machines", type=int, default=100)
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--scatter", action="store_true", help="send each turn to any server")
    parser.add_argument("--seconds", type=float, default=240.0, help="of which the second half is measured")
    parser.add_argument("--token-ms", type=float, default=0.086, help="CPU of a server for a token")
    parser.add_argument(
        "--request-ms", type=float, default=1.0, help="CPU of a server for a request and its placing"
    )
    parser.add_argument(
        "--think", type=float, default=30.0, help="seconds between an answer and the next turn"
    )
    parser.add_argument("--answer", type=float, default=200.0, help="tokens, on average")
    parser.add_argument("--question", type=int, default=100, help="tokens that a turn adds")
    parser.add_argument("--system", type=int, default=500, help="tokens before the first turn")
    parser.add_argument("--longest", type=int, default=6000, help="tokens after which a client begins anew")
    parser.add_argument("--step-ms", type=float, default=16.0, help="of a machine, and")
    parser.add_argument("--row-ms", type=float, default=0.6, help="for each row of its batch")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--prompt-rate", type=float, default=1500.0, help="tokens a second of a machine")
    parser.add_argument("--cache-tokens", type=int, default=400_000, help="that a machine keeps")
    asked = parser.parse_args()
    print(
        "| servers | tokens/s | core of the busiest server | machines | cached | first token, 99th of 100 | network |"
    )
    print("|---|---|---|---|---|---|---|")
    for servers in asked.servers:
        print(World(asked, servers).measure(), flush=True)


if __name__ == "__main__":
    main()
