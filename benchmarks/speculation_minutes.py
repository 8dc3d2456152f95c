"""What speculation costs in the worst minute: with and without it in turns, minute by minute.

    python -m benchmarks.speculation_minutes --model FOLDER [--draft HEAD [--wrong]] [--work prose edit] [--minutes 10]

The engine with proposals decodes one answer after the other, of each work in turn, and the plain one the same answers
in between. Of each minute of the former are shown tokens a second of the clock and of CPU time, as ratios to the
latter, and the least of all at the end: 0.97 is what `step/speculation/pace.py` promises. On a busy machine the ratio
of CPU time tells, for the two do not take turns with the neighbours.
"""

import argparse
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.speculation import Speed, Subject, Work
from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas


class Minute:
    """Seconds of the clock and of CPU time, with and without, for the same number of tokens."""

    def __init__(self) -> None:
        self.tokens = 0
        self.plain = [0.0, 0.0]
        self.other = [0.0, 0.0]

    def add(self, tokens: int, plain: Speed, other: Speed) -> None:
        self.tokens += tokens
        for place in (0, 1):
            self.plain[place] += tokens / plain[place]
            self.other[place] += tokens / other[place]

    def ratios(self) -> tuple[float, float]:
        return self.plain[0] / self.other[0], self.plain[1] / self.other[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--wrong", action="store_true", help="have the head draft other tokens than it means")
    parser.add_argument("--work", nargs="+", default=["prose"])
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a minute")
    given = parser.parse_args()
    accelerate_blas(ModelOptions(), None)
    proposals: dict[str, Any] = {
        "prompt_lookup": given.draft is None,
        "num_draft_tokens": 3 if given.draft else 8,
    }
    if given.draft is not None:
        proposals["draft_model_path"] = str(given.draft)
    plain, other = Subject(given.model, True), Subject(given.model, True, **proposals)
    if given.wrong:
        other.draft_wrongly()
    works: cycle[Work] = cycle(given.work)
    found = []
    print("minute  clock    cpu  proposed  accepted", flush=True)
    for number in range(given.minutes):
        minute = Minute()
        other.proposed = other.accepted = 0
        while minute.other[0] < given.seconds:
            work = next(works)
            without, _ = plain.run(work, given.sequences, given.tokens)
            speed, _ = other.run(work, given.sequences, given.tokens)
            minute.add(given.sequences * given.tokens, without, speed)
        found.append(minute.ratios())
        clock, cpu = found[-1]
        print(f"{number:6}  {clock:5.2f}  {cpu:5.2f}  {other.proposed:8}  {other.accepted:8}", flush=True)
    clock, cpu = (min(column) for column in zip(*found, strict=True))
    print(f" least  {clock:5.2f}  {cpu:5.2f}")


if __name__ == "__main__":
    main()
