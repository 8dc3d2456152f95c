"""How much of what a step's attention is given is padding, as sequences of unequal lengths lie side by side.

    python -m benchmarks.padding [--sequences 4 8 32] [--steps 2000]

No model runs: prompts of 20 to 12,000 tokens (log-normal, median 700) and answers of 8 to 2,000 (exponential, mean 300)
come and go, and each step counts the keys of each class of lengths as `kv_cache` pads them: to the longest of the
class. *pieces* is what would be left if a class's slots were ordered by length and each step's attention were cut into
so many pieces, at the best places. Metal's attention of one query skips what a mask hides (MLX's `sdpa_vector.h`);
MLX on CUDA, and mlx-lm's attention of quantised keys, read it.
"""

import argparse
import random
from itertools import groupby

from pippin.engines.language.kv_cache.kinds.base import length_class

PIECES = (1, 2, 4, 8)


def new_sequence(draw: random.Random) -> list[int]:
    """The length of its prompt, and the tokens of its answer."""
    prompt = min(max(int(draw.lognormvariate(6.55, 1.1)), 20), 12_000)
    return [prompt, min(max(int(draw.expovariate(1 / 300)), 8), 2000)]


def least_read(lengths: list[int], pieces: int) -> int:
    """The keys that sequences in ascending order read in at most so many pieces, each padded to its longest."""
    least = [0, *[sum(lengths) * len(lengths) + 1] * len(lengths)]
    for _ in range(pieces):
        least = [
            min([least[stop], *(least[start] + lengths[stop - 1] * (stop - start) for start in range(stop))])
            for stop in range(len(lengths) + 1)
        ]
    return least[-1]


def padding(sequences: int, steps: int) -> dict[int, float]:
    """The part of all keys read that is padding, by the number of pieces."""
    draw = random.Random(7)
    running = [new_sequence(draw) for _ in range(sequences)]
    needed, read = 0, dict.fromkeys(PIECES, 0)
    for _ in range(steps):
        lengths = sorted(length for length, _ in running)
        needed += sum(lengths)
        for _, members in groupby(lengths, length_class):
            own = list(members)
            for pieces in PIECES:
                read[pieces] += least_read(own, pieces)
        running = [[length + 1, left - 1] if left > 1 else new_sequence(draw) for length, left in running]
    return {pieces: 1 - needed / keys for pieces, keys in read.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, nargs="+", default=[4, 8, 32])
    parser.add_argument("--steps", type=int, default=2000)
    asked = parser.parse_args()
    print("| sequences | padding now | " + " | ".join(f"{pieces} pieces" for pieces in PIECES[1:]) + " |")
    print("|---" * (len(PIECES) + 1) + "|")
    for sequences in asked.sequences:
        shares = padding(sequences, asked.steps)
        print(f"| {sequences} | " + " | ".join(f"{share:.0%}" for share in shares.values()) + " |")


if __name__ == "__main__":
    main()
