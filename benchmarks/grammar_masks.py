"""What token masks cost: microseconds for each token, over many schemas and a real vocabulary.

    python -m benchmarks.grammar_masks --model PATH [--walks 5]

Each schema is compiled once, then random answers are walked through its masks. The table gives the time to compile, to
fill a mask and to take a token. Applying 16 masks to a batch of logits on the device is measured beside them.
"""

import argparse
import random
import statistics
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
from tests.engines.language.constraints.schemas import CORPUS

from pippin.core.requests import JsonSchema, Sampling
from pippin.engines.language.constraints.grammar import GrammarCompiler
from pippin.engines.language.sampling.sampler import BatchSampler, Masks
from pippin.engines.language.text.tokenizer import Tokenizer

BATCH = 16
MOST_TOKENS = 200


def walk(compiler: GrammarCompiler, tokenizer: Tokenizer, walks: int) -> dict[str, list[float]]:
    """Microseconds of each compilation, mask and accepted token."""
    times: dict[str, list[float]] = {"compile": [], "mask": [], "accept": []}
    chance = random.Random(0)
    for schema in CORPUS.values():
        started = time.perf_counter()
        grammar = compiler.compile(JsonSchema(schema))
        times["compile"].append((time.perf_counter() - started) * 1e6)
        row = np.zeros(grammar.words, np.int32)
        for _ in range(walks):
            matcher = grammar.matcher()
            for _ in range(MOST_TOKENS):
                started = time.perf_counter()
                grammar.fill(matcher, row)
                times["mask"].append((time.perf_counter() - started) * 1e6)
                allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
                token = int(chance.choice(allowed))
                if token in tokenizer.eos:
                    break
                started = time.perf_counter()
                matcher.consume_token(token)
                times["accept"].append((time.perf_counter() - started) * 1e6)
                if matcher.is_stopped():
                    break
    return times


def apply(tokenizer: Tokenizer, rounds: int = 30) -> tuple[float, float]:
    """Milliseconds of a sampling step of 16 greedy rows, without and with a mask for each."""
    logits = mx.random.normal((BATCH, tokenizer.size))
    sampler = BatchSampler(tokenizer)
    for seed in range(BATCH):
        sampler.join(Sampling(temperature=0.0), seed=seed, prompt=[1], logprobs=None)
    shape = BATCH, -(-tokenizer.size // 32)
    bits = np.random.default_rng(0).integers(-(2**31), 2**31, shape).astype(np.int32)
    masks = Masks(list(range(BATCH)), bits)
    plain, masked = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        mx.eval(sampler.sample(logits).tokens)
        plain.append(time.perf_counter() - started)
        started = time.perf_counter()
        mx.eval(sampler.sample(logits, masks).tokens)
        masked.append(time.perf_counter() - started)
    return statistics.median(plain) * 1e3, statistics.median(masked) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder with a tokenizer")
    parser.add_argument("--walks", type=int, default=5, help="random answers for each schema")
    options = parser.parse_args()
    tokenizer = Tokenizer.load(options.model)
    times = walk(GrammarCompiler(tokenizer), tokenizer, options.walks)
    print(f"{len(CORPUS)} schemas, {tokenizer.size} tokens in the vocabulary")
    print(f"{'microseconds':>14} {'count':>8} {'median':>8} {'mean':>8} {'p99':>8} {'worst':>8}")
    for name, values in times.items():
        ordered = np.sort(values)
        print(
            f"{name:>14} {len(ordered):>8} {np.median(ordered):>8.1f} {ordered.mean():>8.1f} "
            f"{ordered[int(len(ordered) * 0.99)]:>8.1f} {ordered[-1]:>8.1f}"
        )
    plain, masked = apply(tokenizer)
    print(
        f"sampling {BATCH} greedy rows: {plain:.2f} ms without masks, {masked:.2f} ms with one for each row"
    )


if __name__ == "__main__":
    main()
