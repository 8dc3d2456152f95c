"""How much of what a step's attention is given is padding, as sequences of unequal lengths lie side by side.

    python -m benchmarks.padding [--sequences 4 8 32] [--steps 2000] [--heads 8]

No model runs: prompts of 20 to 12,000 tokens (log-normal, median 700) and answers of 8 to 2,000 (exponential, mean 300)
come and go in slots of `kv_cache`, and the keys that each step's attention is given are counted. *whole*: a class of
lengths is padded to its longest, as Metal's attention takes it, which skips what a mask hides (MLX's `sdpa_vector.h`).
*in pieces*: as it is cut where the device reads that too, on CUDA and with quantised keys and values. *pieces*: their
mean number. *copied*: what ordering the slots reads and writes, in parts of what attention reads. `--heads`: of keys,
128 numbers of 16 bits each; the fewer, the less a further piece is worth.
"""

import argparse
import random
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from msgspec import Struct

from pippin.engines.device import LAUNCH_BYTES
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape, CacheGroups
from pippin.engines.language.kv_cache.kinds.attention import AttentionKind
from pippin.engines.language.kv_cache.kinds.base import Slot, SlotRequest, TokenArray, length_class
from pippin.engines.language.kv_cache.layout import CacheLayout

PLENTY = 1 << 60  # bytes


class Silent(nn.Module):  # type: ignore[misc] # mlx has no types
    """A model with one layer of attention, which computes nothing."""

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        return tokens


class Copied:
    """A group, which counts the keys that are read and written as its slots are ordered."""

    def __init__(self, group: BatchedGroup) -> None:
        self.keys = 0
        self._arrange, self._table = group._arrange, group.table
        group._arrange = self  # type: ignore[method-assign]

    def __call__(self, kept: list[int], capacity: int) -> None:
        self.keys += 2 * len(kept) * capacity
        self._arrange(kept, capacity)


class Read(Struct):
    """Keys, of all steps."""

    needed: int = 0
    whole: int = 0
    in_pieces: int = 0
    copied: int = 0
    pieces: int = 0
    passes: int = 0


def new_sequence(draw: random.Random, groups: CacheGroups) -> tuple[Slot, int]:
    """Its slot, and the tokens of its answer."""
    prompt = min(max(int(draw.lognormvariate(6.55, 1.1)), 20), 12_000)
    answer = min(max(int(draw.expovariate(1 / 300)), 8), 2000)
    request = SlotRequest(length=prompt, growth=answer, length_class=length_class(prompt))
    slot = groups.reserve(request, PLENTY)
    slot.group.join(slot, slot.group.prompt_cache(slot), shift=0)
    return slot, answer


def read_keys(sequences: int, steps: int, heads: int) -> Read:
    keys, model, read = TokenArray(heads, 128, mx.bfloat16), Silent(), Read()
    layout = CacheLayout(model, [AttentionKind(keys=keys, values=keys)])
    shape = BatchShape(layout=layout, prompts_in_slots=True, launch_bytes=LAUNCH_BYTES)
    copied: list[Copied] = []

    def new_group() -> BatchedGroup:
        group = BatchedGroup(model, shape)
        copied.append(Copied(group))
        return group

    groups, draw = CacheGroups(layout, new_group), random.Random(7)
    running = [new_sequence(draw, groups) for _ in range(sequences)]
    for _ in range(steps):
        groups.fit(PLENTY)
        groups.compact()
        for group in groups._groups.values():
            assert isinstance(group, BatchedGroup)
            if group.low == group.high:
                continue
            group.forward(mx.zeros((group.high - group.low, 1), mx.int32))
            read.pieces += len(group.pieces.cuts)
            read.passes += 1
            lengths = group.table.lengths[group.low : group.high]
            read.needed += sum(lengths)
            read.whole += max(lengths) * len(lengths)
            read.in_pieces += sum(max(lengths[i:j]) * (j - i) for i, j in group.pieces.cuts)
        left = [(slot, left - 1) for slot, left in running if left > 1]
        groups.leave([slot for slot, left in running if left <= 1])
        for slot, growth in left:
            if (own := length_class(slot.length)) != slot.length_class:
                groups.promote(slot, own, growth)
        running = [*left, *(new_sequence(draw, groups) for _ in range(sequences - len(left)))]
    read.copied = sum(each.keys for each in copied)
    return read


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, nargs="+", default=[4, 8, 32])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--heads", type=int, default=8)
    asked = parser.parse_args()
    print("| sequences | padding, whole | in pieces | pieces | copied |")
    print("|---|---|---|---|---|")
    for sequences in asked.sequences:
        read = read_keys(sequences, asked.steps, asked.heads)
        padding = [1 - read.needed / keys for keys in (read.whole, read.in_pieces)]
        cells = [sequences, *(f"{each:.0%}" for each in padding), f"{read.pieces / read.passes:.1f}"]
        print("|", " | ".join(map(str, [*cells, f"{read.copied / read.in_pieces:.1%}"])), "|")


if __name__ == "__main__":
    main()
