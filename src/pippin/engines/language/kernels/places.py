"""Where in memory a cache keeps keys and values, so that they are written there without MLX: a function for each class
of cache that a layer may be given. Only a CPU may do so, whose kernels and MLX share the memory."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, RotatingKVCache
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from pippin.engines.language.kv_cache.kinds.attention import (
    AttentionInSlot,
    AttentionKind,
    BatchedAttention,
    BatchedQuantized,
    ForkedAttention,
    JoinedAttention,
)
from pippin.engines.language.kv_cache.kinds.base import TokenArray
from pippin.engines.language.kv_cache.kinds.sliding import BatchedRing
from pippin.engines.language.prefix_cache.tree import Stack, fill_joined


class InPlace(Struct, frozen=True, kw_only=True, gc=False):
    """Where kernels write `count` tokens of each of some sequences in one layer, and read what each has.

    `arrays` are keys and values [slots, heads, capacity, size], or six of them where they are quantised (`form`: bits
    and group size): packed words, scales and biases of keys, and those of values. The sequences lie in the slots from
    `low` on, and have `starts` tokens. The token with index p lies at (p + shift) modulo the capacity. The first
    `shared_tokens`, which all begin with, lie in `shared` instead: keys and values [1, heads, capacity, size].
    """

    arrays: list[mx.array]
    starts: list[int]
    count: int
    low: int = 0
    shift: int = 0
    form: tuple[int, int] | None = None
    shared: list[mx.array] | None = None
    shared_tokens: int = 0


def open_in_place(cache: Any, token: TokenArray, shape: tuple[int, int]) -> list[InPlace]:
    """Where kernels write the next tokens [sequences, count] of one layer, whose cache counts them as there from now
    on. `token` is the shape of the layer's keys, and of its values."""
    return OPENED[type(cache)](cache, token, *shape)


def _own(cache: Any, token: TokenArray, rows: int, count: int) -> list[InPlace]:
    start = cache.offset
    if cache.keys is None or start + count > cache.keys.shape[2]:
        # Two arrays: a cache that they fill takes them as its memory.
        cache.update_and_fetch(token.zeros(rows, count), token.zeros(rows, count))
    cache.offset = start + count
    return [InPlace(arrays=[cache.keys, cache.values], starts=[start] * rows, count=count)]


def _ring(cache: Any, token: TokenArray, rows: int, count: int) -> list[InPlace]:
    # mlx-lm makes the place: one token goes around in what is there, more come after what the first of them sees.
    start = cache.offset
    cache.update_and_fetch(token.zeros(rows, count), token.zeros(rows, count))
    # The last token lies before the index where the next one would.
    shift = (cache._idx - cache.offset) % cache.keys.shape[2]
    return [InPlace(arrays=[cache.keys, cache.values], starts=[start] * rows, count=count, shift=shift)]


def _slots(cache: Any, token: TokenArray, rows: int, count: int) -> list[InPlace]:
    # The group's table of slots counts the tokens.
    slots, arrays = cache.slots, _held(cache, token)
    lengths, form = slots.lengths[slots.low : slots.high], cache.form[1:] or None
    return [InPlace(arrays=arrays, starts=lengths, count=count, low=slots.low, form=form)]


def _in_slot(cache: Any, token: TokenArray, rows: int, count: int) -> list[InPlace]:
    start, arrays = cache.offset, _held(cache.batched, token)
    cache.offset = start + count
    return [InPlace(arrays=arrays, starts=[start], count=count, low=cache.slot.index)]


def _forked(cache: ForkedAttention, token: TokenArray, rows: int, count: int) -> list[InPlace]:
    (own,) = _own(cache.own, token, rows, count)
    known = cache.tokens
    shared = [cache.trunk.keys, cache.trunk.values]
    starts = [known + start for start in own.starts]
    return [replace(own, starts=starts, shift=-known, shared=shared, shared_tokens=known)]


def _joined(cache: Any, token: TokenArray, rows: int, count: int) -> list[InPlace]:
    """Each prompt takes its own tokens, without the padding."""
    own = zip(cache.caches, cache.counts, strict=True)
    return [part for each, count in own for part in open_in_place(each, token, (1, count))]


def _held(batched: BatchedAttention, token: TokenArray) -> list[mx.array]:
    """The buffers of all slots, which whoever writes first makes."""
    if not batched.buffers:
        batched.write(0, token.zeros(1, 1), token.zeros(1, 1), 0)
    return batched.buffers


OPENED: dict[type, Callable[[Any, TokenArray, int, int], list[InPlace]]] = {
    KVCache: _own,
    RotatingKVCache: _ring,
    BatchedAttention: _slots,
    BatchedQuantized: _slots,
    BatchedRing: _slots,
    AttentionInSlot: _in_slot,
    ForkedAttention: _forked,
    JoinedAttention: _joined,
}


def fill_in_place(
    stacks: Sequence[Stack], layers: Sequence[Any], parts: Sequence[Sequence[mx.array]], tokens: int
) -> None:
    """Do what `fill_joined` does, but let numpy write each block directly to its place, where the kinds have one: that
    takes a quarter of the time of MLX's copies."""
    if any(type(stack.kind) is not AttentionKind or stack.kind.key_bits for stack in stacks):
        fill_joined(stacks, layers, parts, tokens)
        return
    kinds = {layer: stack.kind for stack in stacks for layer, _ in stack.members}
    opened = {}
    for layer, kind in kinds.items():
        # One token of zeros makes a cache take its memory, whether that is its own or a slot's.
        kind.fill(layers[layer], [array.zeros(1, 1) for array in kind.token_arrays])
        opened[layer] = kind.cut(layers[layer])
    copy_blocks(parts, [[opened[layer][number] for layer, number in stack.members] for stack in stacks])
    for layer in kinds:
        layers[layer].offset = tokens


def copy_blocks(stacks: Sequence[Sequence[mx.array]], targets: Sequence[Sequence[mx.array]]) -> None:
    """Write members of `stacks` into `targets`, arrays of this process that nobody else computes with meanwhile, in
    half the time of MLX's two copies.

    A stack is a list of arrays [members, heads, tokens, size], one after the other along their tokens; its targets are
    one array [1, heads, capacity, size] for each member, written from the first token on.
    """
    mx.eval(targets)
    mx.synchronize()  # the former contents of a target may still be read
    for blocks, places in zip(stacks, targets, strict=True):
        sources = [_memory(block) for block in blocks]
        tokens = sum(source.shape[2] for source in sources)
        for member, place in enumerate(places):
            own = _memory(place)[0, :, :tokens]
            np.concatenate([source[member] for source in sources], axis=1, out=own)


def _memory(array: mx.array) -> NDArray[Any]:
    """The memory of an array, seen as numbers of a type that numpy has."""
    return np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
