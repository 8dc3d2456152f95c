"""What the prefix cache takes, counted in bytes of its arrays: a shared prefix is there once, and its budget holds.

    python -m benchmarks.cache_memory --model FOLDER [--streams 16] [--tokens 1500] [--budget-mb 64]

First, so many streams share a prefix: the tree's bytes with one of them and with all, and what their live rows take.
Then prompts that nobody knows go through a cache with a budget, until three times as much was computed: the most it
held, the budget, and the sum of its arrays' sizes.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.growth import Asker, prompt_of

MIB = 2**20


def held_bytes(engine: Any) -> int:
    """The sizes of all arrays in the tree, summed up."""
    from pippin.engines.language.kv_cache.layout import snapshot_arrays  # imports mlx

    nodes = list(engine.prefixes.tree.nodes)
    states = [node.snapshot for node in nodes if node.snapshot is not None]
    arrays = [array for node in nodes for array in node.block or ()]
    return sum(
        array.nbytes for array in [*arrays, *(each for state in states for each in snapshot_arrays(state))]
    )


def share(asker: Asker, streams: int, tokens: int) -> None:
    prefix = prompt_of(tokens)
    asker.first_token(prefix)
    alone = asker.engine.stats().cache
    for stream in range(streams):
        asker.engine.submit(asker.job(f"s{stream}", [*prefix, 50 + stream], 16 + 2 * streams))
    together = asker.engine.stats()
    while asker.engine.busy:
        asker.engine.step()
        stats = asker.engine.stats()
        together = max(together, stats, key=lambda each: each.batch_size)
    after = asker.engine.stats().cache
    per_token = alone.bytes / (alone.entries * asker.engine.prefixes.tree.block_tokens)
    print(f"a prefix of {tokens} tokens, {per_token:.0f} bytes each, shared by {streams} streams,")
    print(f"of which {together.batch_size} ran at once:")
    print(f"  tree with one stream    {alone.bytes:>12} bytes in {alone.entries} blocks")
    print(
        f"  tree with {streams:2} streams    {together.cache.bytes:>12} bytes in {together.cache.entries} blocks"
    )
    print(f"  tree when all are done  {after.bytes:>12} bytes in {after.entries} blocks: their answers too")
    print(
        f"  live rows               {together.kv_bytes:>12} bytes: {together.kv_bytes / alone.bytes:.1f} prefixes"
    )


def fill(asker: Asker, tokens: int) -> None:
    tree = asker.engine.prefixes.tree
    asker.first_token(prompt_of(tokens))
    one = most = tree.bytes
    prompts = 1 + 3 * tree.limit // one
    for seed in range(1, prompts):
        asker.engine.submit(asker.job(f"f{seed}", prompt_of(tokens, seed), 1))
        while asker.engine.busy:
            asker.engine.step()
            most = max(most, tree.bytes)
        assert held_bytes(asker.engine) == tree.bytes <= tree.limit
    stats = asker.engine.stats().cache
    print(f"a budget of {tree.limit} bytes, after {prompts} prompts and {stats.evictions} evictions:")
    print(f"  the most that was held  {most:>12} bytes, {tree.limit - most} below the budget")
    print(f"  its arrays, summed up   {held_bytes(asker.engine):>12} bytes; counted: {tree.bytes}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--budget-mb", type=int, default=64)
    options = parser.parse_args()
    share(Asker(options.model), options.streams, options.tokens)
    fill(Asker(options.model, cache_memory_mb=options.budget_mb), min(options.tokens, 400))


if __name__ == "__main__":
    main()
