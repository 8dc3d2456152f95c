"""What the policy of proposals makes of a machine whose costs are known: no clock, so neighbours change nothing.

    python -m benchmarks.speculation_policy --model FOLDER [--work edit again prose] [--sequences 1 2 4 8] [--rounds 3]

The model's own answers are made once. Then `step/speculation` goes through them, with its own lookup and pace, on a
made-up machine that takes for a pass what the kernels were measured to take for as many vectors (`COSTS`), give or take
`--noise`. Shown are the tokens a second of each round, times those of plain steps, and the tokens that a step gave a
sequence: what the policy loses in finding out shows in the first rounds. It says nothing of the kernels.
"""

import argparse
from bisect import bisect_left
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.speculation import Subject, Work
from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas
from pippin.engines.language.step.sequences import Running
from pippin.engines.language.step.speculation.clock import Instant, StepClock
from pippin.engines.language.step.speculation.pace import Pace
from pippin.engines.language.step.speculation.proposers import NOTHING, Lookup, Proposal
from pippin.engines.language.step.speculation.verification import Judged, Speculation

COSTS = {
    1: 5.2,
    2: 6.6,
    4: 7.5,
    5: 12.2,
    8: 13.2,
    9: 20,
    12: 20.7,
    16: 23,
    17: 33,
    20: 38,
    32: 41,
    36: 55,
    48: 61,
    64: 80,
    72: 97,
}
"""Milliseconds of a pass over so many vectors of SmolLM2-135M in 4 bits: two cores with AVX-512 VNNI."""

NOW = Instant(0.0, 0.0)
Text = tuple[list[int], list[int]]


def seconds(vectors: int) -> float:
    """On the line between what was measured."""
    known = list(COSTS)
    if vectors in COSTS:
        return COSTS[vectors] / 1e3
    index = min(bisect_left(known, vectors), len(known) - 1)
    low, high = known[index - 1], known[index]
    return (COSTS[low] + (COSTS[high] - COSTS[low]) * (vectors - low) / (high - low)) / 1e3


@dataclass(eq=False)
class Written:
    """A sequence as far as speculation looks at it."""

    tokens: list[int]
    prompt: tuple[int, ...]
    truth: list[int]
    prediction: tuple[int, ...] = ()
    key: bytes = b""

    @property
    def request(self) -> SimpleNamespace:
        return SimpleNamespace(job=self)

    @property
    def decoder(self) -> SimpleNamespace:
        return SimpleNamespace(allowed=len)

    def go_on(self, proposed: Many[int]) -> int:
        """Takes the proposals as far as they are right, and a token more. Gives how many were."""
        rest = self.truth[len(self.tokens) - len(self.prompt) :]
        right = next((place for place, token in enumerate(proposed) if token != rest[place]), len(proposed))
        self.tokens += rest[: right + 1]
        return right


@dataclass
class Told(StepClock):
    """Knows what the step took."""

    taken: float = 0.0

    def now(self) -> Instant:
        return NOW

    def seconds(self, kind: tuple[int, int], began: Instant) -> float:
        return self.taken


@dataclass
class Machine:
    noise: float
    proposed: int
    draw: Random = field(default_factory=lambda: Random(1))
    clock: Told = field(default_factory=Told)

    def __post_init__(self) -> None:
        pace = Pace(self.proposed, pads=False)
        self.speculation = Speculation(Lookup(in_text=True), pace, most=self.proposed, clock=self.clock)

    def run(self, texts: list[Text], tokens: int) -> tuple[float, float]:
        """Until one has so many tokens: times the speed of plain steps, and tokens that a step gave a sequence."""
        written = [Written(prompt + answer[:1], tuple(prompt), answer) for prompt, answer in texts]
        running = [
            cast(Running, SimpleNamespace(sequence=each, growth=1 << 20, slot=SimpleNamespace(length=0)))
            for each in written
        ]
        taken = given = 0.0
        steps, looks = 0, False
        while all(len(each.tokens) - len(each.prompt) < tokens for each in written):
            proposals = self.speculation.proposals(running) if looks else [NOTHING for _ in running]
            got = self._step(written, proposals, looks)
            taken, given, steps = taken + self.clock.taken, given + got, steps + 1
            looks = self.speculation.wanted(running)
        for each in running:
            self.speculation.forget(each.sequence)
        plain = seconds(len(texts)) * (1 + self.noise / 2)
        return given / taken * plain / len(texts), given / steps / len(texts)

    def _step(self, written: list[Written], proposals: list[Proposal], looked: bool) -> int:
        count, given = len(written), 0
        lengths = [len(each.tokens) for each in proposals]
        checked = any(lengths)
        for each, proposal in zip(written, proposals, strict=True):
            before = len(each.tokens)
            given += each.go_on(proposal.tokens) + 1
            if checked:
                self.speculation.judged(cast(Any, each), proposal, each.tokens[before:])
        self.clock.taken = seconds(count + sum(lengths)) * (1 + self.noise * self.draw.random())
        self.speculation.learn(NOW, count, Judged(proposals, given) if checked else None, looked=looked)
        return given


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", nargs="+", default=["edit", "again", "prose"])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--proposed", type=int, default=8)
    parser.add_argument("--noise", type=float, default=0.05)
    given = parser.parse_args()
    accelerate_blas(ModelOptions(), None)
    subject = Subject(given.model, True)
    print("work    sequences  times plain, round by round (tokens a step)", flush=True)
    works: list[Work] = given.work
    for work in works:
        texts = subject.texts(work, max(given.sequences), 2 * given.tokens)
        for sequences in given.sequences:
            machine = Machine(given.noise, given.proposed)
            rounds = [machine.run(texts[:sequences], given.tokens) for _ in range(given.rounds)]
            shown = "  ".join(f"{ratio:.2f} ({each:.2f})" for ratio, each in rounds)
            print(f"{work:6}  {sequences:9}  {shown}", flush=True)


if __name__ == "__main__":
    main()
