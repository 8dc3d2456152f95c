"""What a tree of lookups would accept, beside the chain that is checked: two ways on, where the text has two.

    python -m benchmarks.speculation_tree --model FOLDER [--work edit again prose] [--answers 8] [--proposed 8]

The model's own answers are made once, without proposals; then they are gone through again as speculation would, by the
lookup of `step/speculation/proposers.py`. At each step the chain has the place with most in common; the tree has beside
it the next best place whose first token is another. Shown are the steps that found anything, those where there are two
ways on, and tokens a step of three ways to spend a check: the chain of P tokens, a tree of two branches of P / 2 (which
computes as many), and a tree of two of P (which computes nearly twice as many). A tree pays where its tokens a step
outweigh what the check takes longer; with equal numbers, where they are simply more.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", nargs="+", default=["edit", "again", "prose"])
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--proposed", type=int, default=8)
    given = parser.parse_args()
    accelerate_blas(ModelOptions(), None)
    subject = Subject(given.model, True)
    half = given.proposed // 2
    shapes = [Shape(1, given.proposed), Shape(2, half), Shape(2, given.proposed)]
    print(
        f"work    steps  found  forks  chain of {shapes[0].tokens}  2 of {half}  2 of {given.proposed}",
        flush=True,
    )
    works: list[Work] = given.work
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
