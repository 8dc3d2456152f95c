"""What the prefix cache takes, counted in bytes of its arrays: a shared prefix is there once, and its budget holds.

    python -m benchmarks.cache_memory --model FOLDER [--streams 16] [--tokens 1500] [--budget-mb 64]

First, so many streams share a prefix: the tree's bytes with one of them and with all, and what their live rows take.
Then prompts that nobody knows go through a cache with a budget, until several times that was computed: the most that it
held, the budget, and the sum of its arrays' sizes.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.growth import Asker, prompt_of
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.language.prefix_blocks import bytes_of, snapshot_arrays

MIB = 2**20


def held_bytes(engine: Any) -> int:
    """The sizes of all arrays in the tree, summed up."""
    nodes = list(engine._prefixes.tree._nodes)
    states = [node.snapshot for node in nodes if node.snapshot is not None]
    return sum(bytes_of(node.block or ()) for node in nodes) + sum(
        bytes_of(snapshot_arrays(state)) for state in states
    )


def submit(asker: Asker, name: str, prompt: list[int], tokens: int) -> None:
    sampling = Sampling(temperature=0.0)
    request = GenerationRequest(
        model="bench", prompt=tuple(prompt), sampling=sampling, max_tokens=tokens, ignore_eos=True
    )
    asker.engine.submit(asker.preparer.prepare(name, Generate(request)))


def share(asker: Asker, streams: int, tokens: int) -> None:
    prefix = prompt_of(tokens)
    asker.first_token(prefix)
    alone = asker.engine.stats().cache
    for stream in range(streams):
        submit(asker, f"s{stream}", [*prefix, 50 + stream], 48)
    while asker.engine.stats().batch_size < streams:
        asker.engine.step()
    together = asker.engine.stats()
    while asker.engine.busy:
        asker.engine.step()
    after = asker.engine.stats().cache
    per_token = alone.bytes / (alone.entries * asker.engine._prefixes.tree.block_tokens)
    print(f"a prefix of {tokens} tokens, {per_token:.0f} bytes each, shared by {streams} streams:")
    print(f"  tree with one stream    {alone.bytes:>12} bytes in {alone.entries} blocks")
    print(
        f"  tree with {streams:2} streams    {together.cache.bytes:>12} bytes in {together.cache.entries} blocks"
    )
    print(f"  tree when all are done  {after.bytes:>12} bytes in {after.entries} blocks: their answers too")
    print(
        f"  live rows               {together.kv_bytes:>12} bytes: {together.kv_bytes / alone.bytes:.1f} prefixes"
    )


def fill(asker: Asker, tokens: int) -> None:
    tree = asker.engine._prefixes.tree
    most, computed, seed = 0, 0, 1
    while computed < 4 * tree.limit:
        before = tree.bytes
        submit(asker, f"f{seed}", prompt_of(tokens, seed), 1)
        while asker.engine.busy:
            asker.engine.step()
            most = max(most, tree.bytes)
        assert held_bytes(asker.engine) == tree.bytes <= tree.limit
        computed += max(tree.bytes - before, tree.limit // 8)
        seed += 1
    stats = asker.engine.stats().cache
    print(f"a budget of {tree.limit} bytes, after {seed - 1} prompts and {stats.evictions} evictions:")
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
