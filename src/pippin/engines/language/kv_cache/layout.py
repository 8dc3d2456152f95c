"""How one model keeps its sequences: which kind of cache each layer has, and what follows for the model as a whole.

`BlockLayout` cuts prompts' caches into the prefix cache's blocks and joins them again. Arrays with an entry for each
token are cut along their tokens; arrays of one shape are stacked, so that a block is a few arrays and not two for each
layer. State that cannot be cut is kept whole, as it is after a block. The kinds of cache say which is which.
"""

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Self

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, make_prompt_cache
from msgspec import Struct
from numpy.typing import NDArray

from pippin.engines.language.kv_cache import kinds as shelf
from pippin.engines.language.kv_cache.kinds.attention import (
    AttentionKind,
    ForkedAttention,
    IndexCache,
    held_packed,
)
from pippin.engines.language.kv_cache.kinds.base import (
    BatchedCache,
    CacheKind,
    PromptCache,
    Slot,
    SlotTable,
    Snapshot,
)
from pippin.engines.language.kv_cache.replay import tell_calls

PADDING = -1
"""Stands for no token where a pass is wider than what a sequence has: `without_padding`."""


def padded(tokens: NDArray[np.int32], proposals: Sequence[Sequence[int]]) -> mx.array:
    """The tokens of a check [sequences, count] with padding behind each sequence's token and proposals."""
    counts = np.array([len(proposed) + 1 for proposed in proposals])
    return mx.array(np.where(np.arange(tokens.shape[1]) < counts[:, None], tokens, np.int32(PADDING)))


def without_padding(model: nn.Module, tokens: mx.array) -> mx.array:
    """The tokens [sequences, count] as the model is to be given them. One that says so (`takes_padding`) computes
    nothing for padding, others compute any token, which nobody reads."""
    return tokens if getattr(model, "takes_padding", False) else mx.maximum(tokens, 0)


def new_prompt_cache(model: nn.Module) -> PromptCache:
    """An empty cache of one sequence, as the model makes it."""
    # A layer's several caches: some may be those of an index, which a model does not tell before it is called.
    return [
        type(each)(*(IndexCache() if type(own) is KVCache else own for own in each.caches))
        if _is_list(each)
        else each
        for each in make_prompt_cache(model)
    ]


def _is_list(cache: Any) -> bool:
    """Whether it is several caches of one layer. mlx-vlm has a class of its own for these, which its models ask for."""
    name: str = type(cache).__name__
    return name == "CacheList"


def leaves(caches: Iterable[Any]) -> Iterator[Any]:
    """The caches of all layers, mlx-lm's lists of several caches for one layer taken apart."""
    for each in caches:
        if _is_list(each):
            yield from leaves(each.caches)
        else:
            yield each


def regrouped(like: Iterable[Any], parts: Iterator[Any]) -> list[Any]:
    """`parts` in the place of the `leaves` of `like`, in lists of several where those are."""
    return [type(each)(*regrouped(each.caches, parts)) if _is_list(each) else next(parts) for each in like]


def arrays_of(caches: PromptCache) -> list[mx.array]:
    """What must be evaluated for a prompt's chunk to be computed."""
    states = [leaf.state for leaf in leaves(caches) if not is_unused(leaf)]
    return [array for _, array in tree_flatten(states) if isinstance(array, mx.array)]


def is_unused(leaf: Any) -> bool:
    """Whether the model has written nothing there: layers of cross-attention have nothing where there is no picture."""
    return getattr(leaf, "keys", leaf) is None


@cache
def find_kinds() -> dict[type, type[CacheKind]]:
    """The kinds of cache by the classes of mlx-lm that they serve: each file of `kinds/` that has a `KIND`."""
    found: dict[type, type[CacheKind]] = {}
    for entry in pkgutil.iter_modules(shelf.__path__):
        kind = getattr(importlib.import_module(f"{shelf.__name__}.{entry.name}"), "KIND", None)
        found |= {} if kind is None else dict.fromkeys(kind.serves, kind)
    return found


def mlx_lm_twin(cache: Any, beside: Sequence[Any] = ()) -> Any:
    """mlx-vlm has twins of mlx-lm's caches, which have the same names. A new cache of mlx-lm's own class, where a kind
    serves that; `cache` itself, where none does. `beside`: all of its layer, where that has several."""
    name = type(cache).__name__
    if _is_list(cache):
        return type(cache)(*(mlx_lm_twin(each, cache.caches) for each in cache.caches))
    kinds = find_kinds().items()
    kind = next((kind for served, kind in kinds if name in (served.__name__, *kind.twins)), None)
    return cache if kind is None else kind.like(cache, beside)


@dataclass(frozen=True)
class UnknownKind(CacheKind):
    """A cache that no file of `kinds/` is for: sequences of its model run one at a time, each with its own."""

    serves = ()
    batches = False
    bytes: int
    token_bytes: int = 0

    @classmethod
    def of(cls, cache: Any) -> Self:
        if is_unused(cache):
            return cls(0)
        keys, values = getattr(cache, "keys", None), getattr(cache, "values", None)
        if isinstance(keys, mx.array) and isinstance(values, mx.array) and keys.ndim == 4:
            return cls(0, (keys.nbytes + values.nbytes) // max(keys.shape[2], 1))
        return cls(sum(array.nbytes for array in arrays_of([cache])))

    def slot_bytes(self, capacity: int, slack: int) -> int:
        return self.bytes + self.token_bytes * capacity

    def batched(self, slots: SlotTable) -> BatchedCache:
        raise NotImplementedError


class CacheLayout:
    """The kind of each layer's cache, learnt from a prompt that the model has run."""

    def __init__(self, model: nn.Module, kinds: Sequence[CacheKind]) -> None:
        self._model = model
        self.kinds = tuple(kinds)  # of the leaves of the model's caches
        self.batches = all(kind.batches for kind in self.kinds)
        # Whether some of a prompt's cache can lie in the slot where its sequence will decode.
        self.in_slots = any(kind.in_slots for kind in self.kinds)
        # Whether several prompts can be computed together, and whether one can be taken back to where it was.
        self.joins = all(kind.joins for kind in self.kinds)
        self.forks = not any(isinstance(kind, UnknownKind) for kind in self.kinds)
        # Each step asks for the same few sizes.
        self.slot_bytes = lru_cache(self._slot_bytes)
        self._counts = Counter(self.kinds)
        self._aside = Counter(kind for kind in self.kinds if not kind.in_slots)

    @classmethod
    def learn(cls, model: nn.Module, cache: PromptCache) -> Self:
        known = find_kinds()
        kinds = []
        for leaf in leaves(cache):
            kind = UnknownKind if is_unused(leaf) else known.get(type(leaf), UnknownKind)
            kinds.append(kind.of(leaf))
        return cls(model, kinds)

    def quantized(self, key_bits: int, value_bits: int, group_size: int) -> "CacheLayout":
        """This layout, with what can be in few bits."""
        kinds = [kind.quantized(key_bits, value_bits, group_size) for kind in self.kinds]
        return CacheLayout(self._model, kinds)

    def mark(self, caches: PromptCache) -> list[Snapshot]:
        """What `rewind` needs to return a prompt's cache to how it is now, beside its length."""
        return [
            () if kind.token_arrays else kind.snapshot(leaf)
            for kind, leaf in zip(self.kinds, leaves(caches), strict=True)
        ]

    def rewind(self, caches: PromptCache, mark: Sequence[Snapshot], tokens: int) -> None:
        """Return a prompt's cache to its first `tokens`; after these it was marked, if a layer can't be cut."""
        for kind, leaf, snapshot in zip(self.kinds, leaves(caches), mark, strict=True):
            if kind.token_arrays:
                leaf.trim(leaf.offset - tokens)
            else:
                kind.restore(leaf, snapshot, tokens)

    def fork(self, caches: PromptCache, tokens: int, more: int) -> PromptCache:
        """A cache that begins with the first `tokens` of another, which nobody may write to meanwhile, with room for so
        many `more`. All layers have keys and values (`joins`)."""
        return regrouped(caches, (ForkedAttention(leaf, tokens, more) for leaf in leaves(caches)))

    def tell_calls(self) -> None:
        """Have the model tell the caches that replay what they are called with, which they need to rewind."""
        caches = new_prompt_cache(self._model)
        states = [leaf for kind, leaf in zip(self.kinds, leaves(caches), strict=True) if kind.replays]
        if states:
            tell_calls(self._model, caches, states)

    def _slot_bytes(self, capacity: int, slack: int = 0) -> int:
        """Bytes of one sequence in a slot with such a capacity."""
        return sum(count * kind.slot_bytes(capacity, slack) for kind, count in self._counts.items())

    def most_bytes(self, largest: int) -> int:
        """The bytes of slots from which one of their arrays may be larger than `largest` bytes."""
        arrays = [array.token_bytes for kind in self.kinds for array in kind.token_arrays]
        return sum(arrays) * largest // max(arrays) if arrays else largest

    def prompt_bytes(self, capacity: int, chunk: int = 0) -> int:
        """Bytes of a prompt's own cache of such a capacity, while chunks of up to so many tokens are added to it."""
        return sum(count * kind.prompt_bytes(capacity, chunk) for kind, count in self._counts.items())

    def aside_bytes(self, capacity: int, chunk: int = 0) -> int:
        """Bytes of what lies beside the slot of a prompt that is computed there; see `prompt_bytes`."""
        return sum(count * kind.prompt_bytes(capacity, chunk) for kind, count in self._aside.items())

    def new_prompt_cache(self, tokens: int) -> PromptCache:
        """A cache of one sequence, with memory for so many tokens where that spares copies."""
        caches = new_prompt_cache(self._model)
        for kind, leaf in zip(self.kinds, leaves(caches), strict=True):
            kind.presize(leaf, tokens)
        return caches

    def for_model(self, parts: Iterable[Any]) -> list[Any]:
        """What is there for each leaf, as the model takes it."""
        return regrouped(new_prompt_cache(self._model), iter(parts))

    def in_slot(self, batched: Sequence[BatchedCache], slot: Slot) -> PromptCache:
        """A prompt's cache that lies in its slot, as far as the kinds allow it."""
        caches = self.new_prompt_cache(slot.prompt_length)
        layers = zip(self.kinds, leaves(caches), batched, strict=True)
        return regrouped(
            caches, (kind.in_slot(cache, slot) if kind.in_slots else own for kind, own, cache in layers)
        )

    def together(
        self, tokens: Sequence[Sequence[int]], caches: Sequence[PromptCache]
    ) -> tuple[mx.array, PromptCache]:
        """The next tokens of several prompts for one pass, [caches, width], and their caches as one."""
        counts = list(map(len, tokens))
        width = max(counts)
        inputs = mx.array([[*each, *[0] * (width - len(each))] for each in tokens])
        if len(caches) == 1:
            return inputs, caches[0]
        layers = zip(*map(leaves, caches), strict=True)
        parts = (kind.joined(layer, counts) for kind, layer in zip(self.kinds, layers, strict=True))
        return inputs, regrouped(caches[0], parts)


MOST_PADDING = 1.5  # computed tokens, padding included, for each real one
MOST_CONTEXT = 8192  # tokens of all prompts' caches together, which a joined pass copies side by side


def worth_joining(counts: Sequence[int], contexts: Sequence[int]) -> bool:
    """Whether chunks of `counts` tokens, after `contexts` tokens each, are worth computing in one pass."""
    width = max(counts)
    longest = max(context + count for context, count in zip(contexts, counts, strict=True))
    return width * len(counts) <= MOST_PADDING * sum(counts) and longest * len(counts) <= MOST_CONTEXT


def computed_prompt(model: nn.Module, tokens: Sequence[int]) -> PromptCache:
    """What a model's caches are after these tokens."""
    caches = new_prompt_cache(model)
    model(mx.array([list(tokens)]), cache=caches)
    mx.eval(arrays_of(caches))
    return caches


Block = tuple[mx.array, ...]
"""[arrays of this shape, heads, tokens, size], one for each shape; several if a kind packs them."""

Snapshots = tuple[Snapshot, ...]
"""The state of each layer that cannot be cut."""


class Stack(Struct, frozen=True):
    """Arrays of one shape: for each its layer, and its number among the layer's arrays that are cut."""

    kind: CacheKind
    members: list[tuple[int, int]]


Fill = Callable[[Sequence[Stack], Sequence[Any], Sequence[Sequence[mx.array]], int], None]
"""Gives the caches of all layers what was cut of their first so many tokens. For each array of a block there are its
pieces, in the order of their tokens; a packed stack has three."""


def fill_joined(
    stacks: Sequence[Stack], layers: Sequence[Any], parts: Sequence[Sequence[mx.array]], tokens: int
) -> None:
    """Let the device join the blocks into keys and values of each layer.

    Whole stacks are joined before layers are taken out of them: thousands of copies, one for each block and layer,
    would take twice as long.
    """
    joined = iter([mx.concatenate(list(pieces), axis=2) for pieces in parts])
    found: dict[int, tuple[CacheKind, list[mx.array]]] = {}
    for stack in stacks:
        whole = next(joined)
        if (form := stack.kind.block_form) is not None:
            words = (whole, next(joined), next(joined))
            _hold_packed(stack, layers, words)
            whole = mx.dequantize(*words, *form)
        # Of one layer, members come in the order of their numbers.
        for place, (layer, _) in enumerate(stack.members):
            found.setdefault(layer, (stack.kind, []))[1].append(whole[place : place + 1])
    for layer, (kind, arrays) in found.items():
        kind.fill(layers[layer], arrays)


Cut = Callable[[Sequence[mx.array], int, int, int], list[list[mx.array]]]
"""Copies of positions `start` to `stop` of arrays [1, heads, capacity, size] in pieces of `size`, for each array of a
block."""


def cut_stacked(arrays: Sequence[mx.array], start: int, stop: int, size: int) -> list[list[mx.array]]:
    """Let the device copy what is cut, which it begins to compute."""
    whole = mx.stack([array[0, :, start:stop] for array in arrays])
    pieces = [mx.contiguous(whole[:, :, place : place + size]) for place in range(0, stop - start, size)]
    # At once: a pending view would make the next write to the sequence copy all of it.
    mx.async_eval(pieces)  # type: ignore[no-untyped-call]
    return [pieces]


def _cut_packed(
    stack: Stack, layers: Sequence[Any], start: int, stop: int, size: int
) -> list[list[mx.array]]:
    """Do what `cut_stacked` does where blocks are kept in few bits. Up to `stop`, the caches have all so then."""
    held = [held_packed(layers[layer])[number] for layer, number in stack.members]
    known = sum(words[0].shape[2] for words in held[0])
    if known < stop:
        arrays = (stack.kind.cut(layers[layer])[number] for layer, number in stack.members)
        whole = mx.stack([array[0, :, known:stop] for array in arrays])
        _hold_packed(stack, layers, mx.quantize(whole, *(stack.kind.block_form or ())))
    last = sum(words[0].shape[2] for words in held[0][:-1])
    if start < last:  # a block was known in part
        for own in held:
            own[:] = [[mx.concatenate(list(parts), axis=2) for parts in zip(*own, strict=True)]]
        last = 0
    parts = zip(*(own[-1] for own in held), strict=True)
    return [piece for own in parts for piece in cut_stacked(own, start - last, stop - last, size)]


def _hold_packed(stack: Stack, layers: Sequence[Any], words: Sequence[mx.array]) -> None:
    """Note what comes next of these arrays in few bits, in the cache of each."""
    for place, (layer, number) in enumerate(stack.members):
        held_packed(layers[layer])[number].append([part[place : place + 1] for part in words])


def fill_in_place(
    stacks: Sequence[Stack], layers: Sequence[Any], parts: Sequence[Sequence[mx.array]], tokens: int
) -> None:
    """Do what `fill_joined` does, but let numpy write each block directly to its place, where the kinds have one: that
    takes a quarter of the time of MLX's copies."""
    kinds = {layer: stack.kind for stack in stacks for layer, _ in stack.members}
    if any(
        type(kind) is not AttentionKind
        or (kind.block_form and (kind.key_bits not in (4, 8) or kind.keys.dtype != mx.float32))
        for kind in kinds.values()
    ):
        fill_joined(stacks, layers, parts, tokens)
        return
    opened = {}
    for layer, kind in kinds.items():
        # One token of zeros makes a cache take its memory, whether that is its own or a slot's.
        kind.fill(layers[layer], [array.zeros(1, 1) for array in kind.token_arrays])
        opened[layer] = kind.cut(layers[layer])
    pieces = iter(parts)
    for stack in stacks:
        targets = [opened[layer][number] for layer, number in stack.members]
        if (form := stack.kind.block_form) is None:
            copy_blocks([next(pieces)], [targets])
            continue
        words = [mx.concatenate(list(next(pieces)), axis=2) for _ in range(3)]
        _hold_packed(stack, layers, words)
        unpack_into(targets, words, *form)
    for layer in kinds:
        layers[layer].offset = tokens


def unpack_into(targets: Sequence[mx.array], words: Sequence[mx.array], group_size: int, bits: int) -> None:
    """Write what MLX's `dequantize` makes of a stack, of 4 or 8 bits, into one array of float32 for each member, as
    `copy_blocks` does, in a sixth of its time."""
    mx.eval(targets, words)
    mx.synchronize()
    for target, packed, scales, biases in zip(targets, *map(np.asarray, words), strict=True):
        octets = packed.view(np.uint8)
        own = np.asarray(target)[0, :, : octets.shape[1]]
        if bits == 8:
            own[...] = octets
        else:
            own[..., ::2], own[..., 1::2] = octets & 15, octets >> 4
        groups = own.reshape(*scales.shape, group_size)  # the same memory
        groups *= scales[..., None]
        groups += biases[..., None]


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


def cut_in_place(arrays: Sequence[mx.array], start: int, stop: int, size: int) -> list[list[mx.array]]:
    """Do what `cut_stacked` does, but let numpy copy, in less than half of the time."""
    if arrays[0].dtype == mx.bfloat16:
        return cut_stacked(arrays, start, stop, size)
    mx.eval(list(arrays))
    memory = [_memory(array)[0] for array in arrays]
    return [
        [
            mx.array(np.stack([each[:, place : place + size] for each in memory]))
            for place in range(start, stop, size)
        ]
    ]


def _memory(array: mx.array) -> NDArray[Any]:
    """The memory of an array, seen as numbers of a type that numpy has."""
    return np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


class BlockLayout:
    """Cuts the caches of a model's sequences into blocks, and joins them again."""

    def __init__(
        self,
        layout: CacheLayout,
        fill: Fill = fill_joined,
        cut: Cut = cut_stacked,
        most_arrays: int | None = None,
    ) -> None:
        """`most_arrays`: a device may have room for so many only."""
        self._most_arrays = most_arrays
        self._kinds = layout.kinds
        stacks: dict[object, Stack] = {}
        for layer, kind in enumerate(self._kinds):
            for number, shape in enumerate(kind.token_arrays):
                stacks.setdefault((kind, shape), Stack(kind, [])).members.append((layer, number))
        self._stacks = list(stacks.values())
        self._fill, self._cut = fill, cut
        self.has_blocks = bool(self._stacks)
        self.has_state = any(kind.replays for kind in self._kinds)
        self.has_snapshots = not all(kind.token_arrays for kind in self._kinds)

    def held_bytes(self, arrays: Sequence[mx.array], limit: int) -> int:
        """What these arrays take of a tree's limit: small ones take their share of the arrays that there may be."""
        least = 0 if self._most_arrays is None else limit // self._most_arrays
        return sum(max(array.nbytes, least) for array in arrays)

    def cut(self, cache: PromptCache, start: int, stop: int, size: int) -> list[Block]:
        """Copies of positions `start` to `stop`, both multiples of `size`."""
        if start >= stop:
            return []
        layers, parts = list(leaves(cache)), []
        for stack in self._stacks:
            if stack.kind.block_form is not None:
                parts += _cut_packed(stack, layers, start, stop, size)
                continue
            own = [stack.kind.cut(layers[layer])[number] for layer, number in stack.members]
            parts += self._cut(own, start, stop, size)
        return list(zip(*parts, strict=True)) if parts else [()] * ((stop - start) // size)

    def snapshot(self, cache: PromptCache) -> Snapshots:
        """A copy of the state of the layers that cannot be cut, which the device begins to compute."""
        layers = zip(self._kinds, leaves(cache), strict=True)
        snapshot = tuple(kind.snapshot(leaf) for kind, leaf in layers if not kind.token_arrays)
        mx.async_eval(*snapshot_arrays(snapshot))  # type: ignore[no-untyped-call]
        return snapshot

    def restore(
        self, cache: PromptCache, blocks: Sequence[Block], snapshot: Snapshots | None, tokens: int
    ) -> None:
        """Fill a sequence's new cache with what was kept of its first `tokens`, which may end within the last block."""
        layers = list(leaves(cache))
        *whole, last = blocks
        rest = tokens - sum(block[0].shape[2] for block in whole if block)
        last = tuple(part if part.shape[2] == rest else part[:, :, :rest] for part in last)
        self._fill(self._stacks, layers, list(zip(*whole, last, strict=True)), tokens)
        states = iter(snapshot or ())
        for kind, leaf in zip(self._kinds, layers, strict=True):
            if not kind.token_arrays:
                kind.restore(leaf, next(states), tokens)


def snapshot_arrays(snapshot: Snapshots) -> list[mx.array]:
    return [array for state in snapshot for array in state if array is not None]
