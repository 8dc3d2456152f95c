"""What a draw takes, and what it takes where MLX looks for the best tokens in the whole vocabulary, not in blocks.

    python -m benchmarks.draws [--vocabulary 49152 151936] [--rows 1 8] [--draws 30] [--sort]

Random logits of normal distribution. Both ways are measured in turns; they draw the same tokens. On a CPU the best
tokens are found by a partition, and numpy sorts for top-p; `--sort` does without both, as a GPU must, where MLX sorts.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import product
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pippin.config.options.model import ModelOptions
from pippin.core.parameters import OfEveryAnswer
from pippin.core.requests import Sampling
from pippin.engines.cpu.blas import accelerate_blas

accelerate_blas(ModelOptions(), None)  # before mlx is imported

import mlx.core as mx  # noqa: E402

from pippin.engines.device import configure, decide, find_facts  # noqa: E402
from pippin.engines.language.sampling import sampler  # noqa: E402
from pippin.engines.language.sampling.sampler import BatchSampler  # noqa: E402

DRAWS = {
    "top-k and top-p": Sampling(temperature=0.7, top_p=0.8, top_k=20),
    "top-p": Sampling(temperature=0.7, top_p=0.9),
}
WORDS: Any = SimpleNamespace(line_ends=(1,), eos=(2,), asked=OfEveryAnswer())
NO_BLOCKS = 1 << 30  # divides no vocabulary


def draws(sampling: Sampling, rows: int, vocabulary: int, sorts: bool) -> Iterator[tuple[float, list[int]]]:
    """Milliseconds of each draw, and its tokens."""
    sampler = BatchSampler(WORDS, sorts_slowly=not sorts)
    for row in range(rows):
        sampler.join(sampling, seed=row, prompt=(0,), logprobs=None, vocabulary=vocabulary)
    logits = 5 * mx.random.normal((rows, vocabulary), key=mx.random.key(1))
    mx.eval(logits)
    while True:
        begun = time.perf_counter()
        drawn = sampler.sample(logits)
        mx.eval(drawn.arrays())
        yield (time.perf_counter() - begun) * 1e3, drawn.tokens.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[49_152, 151_936])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--sort", action="store_true")
    asked = parser.parse_args()
    plan = decide(find_facts(), ModelOptions())
    configure(plan)
    sorts = asked.sort or not plan.sorts_slowly
    print("| vocabulary | rows | draw | in blocks, ms | whole, ms |\n|---|---|---|---|---|")
    for vocabulary, rows, name in product(asked.vocabulary, asked.rows, DRAWS):
        ways = [draws(DRAWS[name], rows, vocabulary, sorts) for _ in range(2)]
        spent: list[list[float]] = [[], []]
        for _ in range(asked.draws):
            blocks, tokens = next(ways[0])
            by_mlx = patch.object(sampler, "top_p_of_best", sampler.top_p)
            with patch.object(sampler, "BLOCK", NO_BLOCKS), by_mlx:
                whole, others = next(ways[1])
            assert tokens == others
            spent[0].append(blocks)
            spent[1].append(whole)
        told = " | ".join(f"{median(each):.2f}" for each in spent)
        print(f"| {vocabulary} | {rows} | {name} | {told} |", flush=True)


if __name__ == "__main__":
    main()
