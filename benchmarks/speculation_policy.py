"""What the policy of proposals makes of a machine whose costs are known: no clock, so neighbours change nothing.

    python -m benchmarks.speculation_policy --model FOLDER [--work edit prose] [--sequences 1 2 4 8] [--rounds 3]
    python -m benchmarks.speculation_policy --model FOLDER --measure [--rounds 15]

The model's own answers are made once. Then `step/speculation` goes through them, with its own lookup and pace, on a
made-up machine that takes for a pass what the kernels were measured to take for as many vectors (`COSTS`), give or take
`--noise`. Shown are the tokens a second of each round, times those of plain steps, and the tokens that a step gave a
sequence: what the policy loses in finding out shows in the first rounds. The last column is a policy that was told what
passes cost before its first step, and tries nothing: what is left to gain by learning faster. It says nothing of the
kernels.

`--measure` shows what passes cost on this machine instead, of which `COSTS` are made: milliseconds of CPU time of all
threads for a step that checks so many vectors, of 1, 2, 4 and 8 sequences, the least of the rounds.
"""

import argparse
import time
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
from pippin.engines.device import WITH_VNNI
from pippin.engines.language.step.sequences import Running, Sequence
from pippin.engines.language.step.speculation.pace import Pace, StepTimes
from pippin.engines.language.step.speculation.proposers import NOTHING, Lookup, Proposal
from pippin.engines.language.step.speculation.verification import Judged, Speculation

COSTS = {
    1: 12.3,
    2: 13.5,
    3: 15.0,
    4: 17.0,
    5: 23.5,
    6: 24.0,
    8: 29.0,
    9: 35.5,
    12: 40.5,
    16: 47.5,
    17: 66.5,
    24: 73.5,
    25: 87.0,
    32: 91.0,
    33: 104.0,
    36: 105.0,
    40: 124.0,
    48: 130.0,
    49: 155.0,
    64: 167.0,
    72: 199.0,
}
"""Milliseconds of CPU time of a pass over so many vectors of SmolLM2-135M in 4 bits, with whatever the step does beside
it: two cores with AVX-512 VNNI. Of several sequences a pass takes up to half a millisecond more for each."""

VECTORS = {
    1: (1, 2, 3, 4, 5, 6, 8, 9),
    2: (2, 3, 4, 6, 8, 9, 12, 16, 18),
    4: (4, 5, 6, 8, 9, 12, 16, 17, 24, 25, 32, 33, 36),
    8: (8, 9, 12, 16, 17, 24, 25, 32, 33, 36, 40, 48, 49, 64, 72),
}
"""By the number of sequences, what `--measure` computes for them."""

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


class ToldPace(Pace):
    """Knows what passes cost."""

    def __init__(self, most: int) -> None:
        super().__init__(most, costs=WITH_VNNI)
        self.times = ToldTimes(costs=WITH_VNNI)

    def lengths(self, chances: Many[float], available: Many[int]) -> list[int]:
        self._trial, self._budget, self._since_plain = 1, 0.0, 0
        return super().lengths(chances, available)


class ToldTimes(StepTimes):
    def observe(self, sequences: int, computed: int, seconds: float) -> None:
        """There is nothing to learn."""

    def measured(self, sequences: int) -> bool:
        return True

    def plain(self, sequences: int) -> float:
        return seconds(sequences)

    def expected(self, sequences: int, computed: int) -> float:
        return seconds(computed)

    def widest(self, sequences: int) -> float:
        return float(max(COSTS))


@dataclass
class Machine:
    noise: float
    proposed: int
    told: bool = False
    draw: Random = field(default_factory=lambda: Random(1))
    taken: float = 0.0  # seconds of the last step

    def __post_init__(self) -> None:
        pace = ToldPace(self.proposed) if self.told else Pace(self.proposed, costs=WITH_VNNI)
        self.speculation = Speculation(Lookup(in_text=True), pace, most=self.proposed)

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
            taken, given, steps = taken + self.taken, given + got, steps + 1
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
        self.taken = seconds(count + sum(lengths)) * (1 + self.noise * self.draw.random())
        self.speculation.learn(
            self.taken, count, Judged(proposals, given) if checked else Judged(), looked=looked
        )
        return given


class Anything:
    """Proposes as many tokens as it is asked for, which are wrong."""

    is_free = True
    weight_bytes = 0

    def is_ready(self, sequence: Sequence) -> bool:
        return True

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[Proposal]:
        return [Proposal([len(sequence.tokens) % 1000 + 500] * most) for sequence, most in wanted]

    def forget(self, sequence: Sequence) -> None:
        pass

    def sequence_bytes(self, capacity: int) -> int:
        return 0


class Measuring(Pace):
    """Has passes compute so many vectors."""

    vectors = 1

    def worth_looking(self, chances: Many[float]) -> bool:
        return self.vectors > len(chances)

    def lengths(self, chances: Many[float], available: Many[int]) -> list[int]:
        each, more = divmod(self.vectors - len(chances), len(chances))
        return [each + (index < more) for index in range(len(chances))]


def print_costs(folder: Path, proposed: int, rounds: int) -> None:
    subject = Subject(folder, True, num_draft_tokens=proposed, prompt_lookup=True)
    engine, pace = subject.engine, Measuring(proposed, costs=WITH_VNNI)
    subject.speculation.proposer, subject.speculation.pace = Anything(), pace
    print("sequences  milliseconds of CPU time by vectors", flush=True)
    for sequences, numbers in VECTORS.items():
        found = {vectors: [0.0] * rounds for vectors in numbers}
        pace.vectors = sequences
        subject.begin("prose", sequences, 2 * rounds * len(numbers) + 2 * len(numbers))
        for turn in range(rounds):
            for pace.vectors in numbers:
                engine.step()  # of this kind, and it has the next one look for proposals
                began = time.process_time()
                engine.step()
                found[pace.vectors][turn] = 1e3 * (time.process_time() - began)
        for request in list(engine.lifecycle.live):
            engine.cancel(request.job.id)
        while engine.busy:
            engine.step()
        print(
            f"{sequences:9}  {'  '.join(f'{each}: {min(own):.1f}' for each, own in found.items())}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", nargs="+", default=["edit", "prose"])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--proposed", type=int, default=8)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--measure", action="store_true", help="show what passes cost on this machine")
    given = parser.parse_args()
    accelerate_blas(ModelOptions(), None)
    if given.measure:
        print_costs(given.model, given.proposed, given.rounds)
        return
    subject = Subject(given.model, True)
    print(
        "work    sequences  times plain, round by round, and told what passes cost (tokens a step)",
        flush=True,
    )
    works: list[Work] = given.work
    for work in works:
        texts = subject.texts(work, max(given.sequences), 2 * given.tokens)
        for sequences in given.sequences:
            machine = Machine(given.noise, given.proposed)
            rounds = [machine.run(texts[:sequences], given.tokens) for _ in range(given.rounds)]
            rounds.append(
                Machine(given.noise, given.proposed, told=True).run(texts[:sequences], given.tokens)
            )
            shown = "  ".join(f"{ratio:.2f} ({each:.2f})" for ratio, each in rounds)
            print(f"{work:6}  {sequences:9}  {shown}", flush=True)


if __name__ == "__main__":
    main()
