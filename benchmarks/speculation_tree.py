"""What trees of proposals give beside chains: of a draft head as they are checked, of lookups as they would be.

    python -m benchmarks.speculation_tree --model FOLDER --draft HEAD [--work prose] [--sizes 2 4 8 16 32]
    python -m benchmarks.speculation_tree --model FOLDER [--work edit again prose] [--answers 8] [--proposed 8]

With a head each answer is made with chains and with trees of so many tokens in every step, one sequence at a time,
without the kernels for CPUs, which take no trees. Shown are tokens a step, which do not depend on the machine, and what
a step took of the time of a plain one, by the clock and by CPU time; and whether the answers are those without.

Of lookups, two ways on are tried, where the text has two. The model's own answers are made once, without proposals;
then they are gone through again as speculation would, by the lookup of `step/speculation/proposers.py`. At each step
the chain has the place with most in common; the tree has beside it the next best place whose first token is another.
Shown are the steps that found anything, those where there are two ways on, and tokens a step of three ways to spend a
check: the chain of P tokens, a tree of two branches of P / 2 (which computes as many), and a tree of two of P (which
computes nearly twice as many). A tree pays where its tokens a step outweigh what the check takes longer; with equal
numbers, where they are simply more.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.speculation import Subject, Work
from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas
from pippin.engines.language.step.speculation.proposers import _agreement, _Places, _runs

Ways = list[list[int]]


class Shape(NamedTuple):
    """Of a check: how many ways on it has, and how many tokens of each."""

    ways: int
    tokens: int


def ways_on(places: _Places, tokens: list[int], most: int) -> Ways:
    """The best place's next tokens, and those of the next best that begins otherwise."""
    ends = {end for run in _runs(tokens, len(tokens)) for end in places.ends.get(run, ())}
    rated = sorted(ends, key=lambda end: (_agreement(tokens, end), end), reverse=True)
    found: Ways = []
    for end in rated:
        way = tokens[end : end + most]
        if way and all(way[0] != other[0] for other in found):
            found.append(way)
    return found[:2]


def agreed(way: Sequence[int], truth: Sequence[int]) -> int:
    return next(
        (count for count, pair in enumerate(zip(way, truth, strict=False)) if pair[0] != pair[1]), len(way)
    )


class Count:
    """Over all answers."""

    def __init__(self) -> None:
        self.steps = self.found = self.forks = self.tokens = 0

    def go(self, prompt: list[int], answer: list[int], shape: Shape) -> None:
        places, done = _Places(), 1
        while done < len(answer):
            text = prompt + answer[:done]
            while places.read < len(text):
                places.read_on(text)
            ways = ways_on(places, text, shape.tokens)
            truth = answer[done : done + shape.tokens]
            accepted = max((agreed(way, truth) for way in ways[: shape.ways]), default=0)
            self.steps += 1
            self.found += bool(ways)
            self.forks += len(ways) > 1
            self.tokens += 1 + accepted
            done += 1 + accepted


class Fixed(NamedTuple):
    """What is proposed in each step."""

    form: Literal["none", "chain", "tree"]
    size: int = 0


class Made(NamedTuple):
    """Answers, and what they took: steps, and seconds of these by the clock and of the process."""

    answers: list[list[int]]
    steps: int
    clock: float
    cpu: float


def made(subject: Subject, proposed: Fixed, work: Work, answers: int, tokens: int) -> Made:
    """Answers that the engine makes one after the other."""
    engine = subject.engine
    speculation = engine.speculation
    assert speculation is not None
    assert speculation.trees is not None
    chain, tree = (proposed.size if proposed.form == form else 0 for form in ("chain", "tree"))
    changes: tuple[tuple[Any, str, Any], ...] = (
        (speculation.pace, "lengths", lambda _, rooms: [min(chain, room) for room in rooms]),
        (speculation.trees, "size", lambda _, __, room: min(tree, room)),
    )
    for part, name, stand_in in changes:
        object.__setattr__(part, name, stand_in)
    found: list[list[int]] = []
    steps, clock, cpu = 0, 0.0, 0.0
    for number in range(answers):
        live = subject.begin_one(work, number, tokens)
        began = time.perf_counter(), time.process_time()
        first = engine.stats().steps
        while engine.busy:
            engine.step()
        steps += engine.stats().steps - first
        clock, cpu = clock + time.perf_counter() - began[0], cpu + time.process_time() - began[1]
        found.append(live.tokens[len(live.request.job.prompt) :])
    return Made(found, steps, clock, cpu)


def show_head(
    folder: Path, draft: Path, works: list[Work], sizes: list[int], answers: int, tokens: int
) -> None:
    subject = Subject(folder, False, draft_model_path=str(draft), num_draft_tokens=max(sizes))
    shapes = [Fixed("none"), *(Fixed(form, size) for form in ("chain", "tree") for size in sizes)]
    print("work    proposed   tokens a step  step's time  of CPU  same answers", flush=True)
    for work in works:
        plain = None
        for shape in shapes:
            each = made(subject, shape, work, answers, tokens)
            plain = plain or each
            given = sum(map(len, each.answers)) - answers  # the first comes with the prompt
            clock, cpu = (
                own / each.steps / (theirs / plain.steps)
                for own, theirs in ((each.clock, plain.clock), (each.cpu, plain.cpu))
            )
            same = sum(own == its for own, its in zip(each.answers, plain.answers, strict=True))
            name = f"{shape.form} {shape.size or ''}"
            print(
                f"{work:6}  {name:9}  {given / each.steps:13.2f}  {clock:11.2f}  {cpu:6.2f}  {same} of {answers}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path, help="a draft head")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8, 16, 32], help="of chains and trees")
    parser.add_argument("--work", nargs="+", default=["edit", "again", "prose"])
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--proposed", type=int, default=8)
    given = parser.parse_args()
    accelerate_blas(ModelOptions(), None)
    works: list[Work] = given.work
    if given.draft is not None:
        show_head(given.model, given.draft, works, given.sizes, given.answers, given.tokens)
        return
    subject = Subject(given.model, True)
    half = given.proposed // 2
    shapes = [Shape(1, given.proposed), Shape(2, half), Shape(2, given.proposed)]
    print(
        f"work    steps  found  forks  chain of {shapes[0].tokens}  2 of {half}  2 of {given.proposed}",
        flush=True,
    )
    for work in works:
        texts = subject.texts(work, given.answers, given.tokens)
        counts = []
        for shape in shapes:
            counts.append(Count())
            for prompt, answer in texts:
                counts[-1].go(prompt, answer, shape)
        chain = counts[0]
        rates = "  ".join(f"{each.tokens / each.steps:8.2f}" for each in counts)
        print(f"{work:6}  {chain.steps:5}  {chain.found:5}  {chain.forks:5}  {rates}", flush=True)


if __name__ == "__main__":
    main()
