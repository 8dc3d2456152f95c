"""A model whose steps the kernels compute, called like mlx-lm's models and on the same caches.

The kernels write keys and values without MLX, where a cache keeps them: a function for each class of cache that a layer
may be given says where. Only a CPU may do so, whose kernels and MLX share the memory.
"""

from collections.abc import Callable, Iterator, Sequence
from ctypes import addressof, c_char
from functools import partial
from itertools import chain
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache, RotatingKVCache
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from pippin_kernels import KV, Addition, AnyKV, Decoder, Kernels, Matrix, PackedKV, Places, Projection, Step

from pippin.config.options.model import CpuActivations
from pippin.engines.language.kept import keep, known
from pippin.engines.language.kernels.agreement import TOLERANCE, require_agreement
from pippin.engines.language.kernels.description import Sample, describe
from pippin.engines.language.kv_cache.agreement import Passed
from pippin.engines.language.kv_cache.kinds.attention import (
    AttentionInSlot,
    BatchedAttention,
    BatchedQuantized,
    ForkedAttention,
    JoinedAttention,
)
from pippin.engines.language.kv_cache.kinds.base import TokenArray
from pippin.engines.language.kv_cache.kinds.sliding import BatchedRing
from pippin.engines.language.kv_cache.layout import PADDING


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


class KernelHead(nn.Module):  # type: ignore[misc] # mlx has no types
    """The projection onto the vocabulary. The module has the name that mlx-lm gives it, so that it is restricted to the
    sampled positions like mlx-lm's."""

    def __init__(self, kernels: Kernels, matrix: Matrix) -> None:
        super().__init__()
        self._kernels = kernels
        self._matrix = matrix

    def __call__(self, x: mx.array) -> mx.array:
        """Maps states [..., hidden] to logits [..., vocabulary]; a state of zeros, such as padding, gives zeros."""
        states = np.asarray(x)
        vectors = np.ascontiguousarray(states.reshape(-1, states.shape[-1]), np.float32)
        # Written directly into MLX's memory: copying 16 rows costs a tenth of their product.
        logits = mx.zeros((*states.shape[:-1], self._matrix.rows))
        memory = np.asarray(logits).reshape(-1, self._matrix.rows)
        real = vectors.any(axis=-1)
        if real.all():
            self._kernels.product_into(self._matrix, vectors, memory)
        elif real.any():  # the kernels refuse a product with no vectors
            memory[real] = self._kernels.product(self._matrix, vectors[real])
        return logits


class KernelDecoder(nn.Module):  # type: ignore[misc] # mlx has no types
    """Computes logits from tokens and caches at once: nothing is left to be evaluated."""

    takes_padding = True

    def __init__(self, model: nn.Module, threads: int, *, activations: CpuActivations = "float32") -> None:
        """Takes over the weights of `model`, to which `architectures.why_not` must have no objection. Vectors are
        rounded to `activations`. Raises `ValueError` for damaged weights, and `OtherAnswer` if a layer computes
        something else than mlx-lm's, which no start asks after one that has found that none does."""
        super().__init__()
        self.model_type = model.model_type
        origin = vars(model).get("origin")
        found = describe(model, sampled=known(Passed, "layers", origin) is None)
        self.args = found.args
        self._logits = found.architecture.logits
        self._linears = found.linears
        self._chosen: Callable[[int], list[int] | None] = lambda sequences: None
        self._kept = KeptPlaces()
        kernels = Kernels(threads)
        shape = found.shape
        self._decoder = Decoder(kernels, shape)
        self._kernels = kernels
        self.captured: mx.array | None = None  # [sequences, count, layers x hidden], of the last call
        self._token = TokenArray(shape.kv_heads, shape.head_dim, mx.float32)
        self.lm_head = KernelHead(kernels, shape.embedding if found.head is None else found.head)
        self.weight_bytes = shape.nbytes + (0 if found.head is None else found.head.nbytes)
        self.instruction_set = kernels.instruction_set
        if differences := [self._difference(sample) for sample in found.samples]:
            keep(Passed(max(differences), TOLERANCE), "layers", origin)
        if activations == "int8":  # after the comparison, which needs the exactness of float32
            kernels.round_activations()

    def _difference(self, sample: Sample) -> float:
        """How far a layer is from mlx-lm's own. Raises `OtherAnswer`."""
        layer = open_in_place(KVCache(), self._token, (1, len(sample.states)))
        step = Step(starts=[0], counts=[len(sample.states)], places=_places([layer]))
        own = self._decoder.run_layer(sample.layer, sample.states, step)
        return require_agreement(f"layer {sample.layer}", own, sample.expected)

    @property
    def layers(self) -> list[None]:
        """An entry for each layer."""
        return [None] * len(self._decoder.shape.layers)

    def make_cache(self) -> list[Any]:
        """The caches that mlx-lm's model makes."""
        windows = [layer.window for layer in self._decoder.shape.layers]
        return [RotatingKVCache(max_size=window) if window else KVCache() for window in windows]

    def capture(self, layers: Sequence[int]) -> None:
        """Let each call from now on leave the states after these layers, in ascending order, in `captured`."""
        self._decoder.capture(layers)

    def embed(self, tokens: mx.array) -> mx.array:
        """The embeddings [..., hidden] of tokens [...], unscaled."""
        indexes = np.asarray(tokens)
        rows = self._kernels.rows(self._decoder.shape.embedding, indexes)
        return mx.array(rows.reshape(*indexes.shape, -1))

    def linear_sizes(self, path: str) -> tuple[int, int] | None:
        """The input and output sizes of the linear layer at a path of mlx-lm's model; None if there is none that
        adapters can add to."""
        found = self._linears.get(path)
        return None if found is None else found[:2]

    def adapt(
        self, path: str, chosen: Callable[[int], list[int] | None], down: mx.array, up: mx.array
    ) -> None:
        """Let each sequence's adapter add to a linear layer: `down` [adapters, in, rank] and `up` [adapters, rank,
        out], of which index 0 is no adapter. `chosen` tells the index of each of so many sequences, or None if none has
        one."""
        self._chosen = chosen
        *_, places = self._linears[path]
        for place in places:
            pairs = [_addition(down[index], up[index][:, place.rows]) for index in range(1, down.shape[0])]
            projection: Projection = place.projection
            self._decoder.adapt(place.layer, projection, pairs)

    def __call__(self, inputs: mx.array, cache: Sequence[Any] | None = None) -> mx.array:
        """Logits [sequences, count, vocabulary] of tokens [sequences, count], which follow those in the caches."""
        tokens = np.asarray(inputs)
        # Blocks for the prefix cache may still be copied from memory that is written here.
        mx.synchronize()
        return self._logits_of(self._run(tokens, self.make_cache() if cache is None else cache))

    def states(self, inputs: mx.array, lengths: mx.array) -> mx.array:
        """Normed states [sequences, longest, hidden] of whole sequences of tokens [sequences, longest]. Padding begins
        at `lengths` [sequences], and its states are zeros. No cache is read or written."""
        tokens = np.asarray(inputs)
        counts = [int(length) for length in np.asarray(lengths)]
        real = np.arange(tokens.shape[1]) < np.array(counts)[:, None]
        shape = self._decoder.shape
        size = len(counts), shape.kv_heads, tokens.shape[1], shape.head_dim
        kept = KV(np.empty(size, np.float32), np.empty(size, np.float32))
        # No layer reads the keys and values of another, so all share the memory.
        places = Places([[kept]] * len(shape.layers))
        step = Step(starts=[0] * len(counts), counts=counts, places=places)
        hidden, _ = self._decoder.run(tokens[real], step)
        return mx.array(padded_states(hidden, (tokens.shape[0], tokens.shape[1]), real))

    def in_parts(self, inputs: mx.array, cache: Sequence[Any]) -> Iterator[mx.array | None]:
        """What `__call__` does, a layer at a time, with other passes between: None after each, then the logits.
        Captures nothing. The caches count the tokens from the beginning: who computes their slots in passing writes
        behind them."""
        opened, decoder, kernels = self._open(np.asarray(inputs), cache), self._decoder, self._kernels
        states = kernels.rows(decoder.shape.embedding, opened.tokens) * np.float32(
            decoder.shape.embedding_scale
        )
        layers = [_moved(*layer, held=False) for layer in zip(cache, opened.layers, strict=True)]
        opened.layers.clear()
        for number, layer in enumerate(zip(cache, layers, strict=True)):
            mx.synchronize()  # as in `__call__`
            parts = _moved(*layer)
            mx.eval([part.arrays for part in parts])
            step = opened.step(_places([parts]), self._chosen(len(opened.counts)))
            del parts
            states = decoder.run_layer(number, states, step)
            yield None
        hidden = kernels.rms_norm(states, decoder.shape.final_norm, decoder.shape.norm_eps)
        yield self._logits_of(padded_states(hidden, opened.shape, opened.real))

    def _open(self, tokens: NDArray[Any], caches: Sequence[Any]) -> "Opened":
        """Make place for tokens [sequences, count] in the caches, which count them as there from now on."""
        shape = tokens.shape[0], tokens.shape[1]
        layers = list(map(partial(open_in_place, token=self._token, shape=shape), caches))
        present = (tokens != PADDING).sum(axis=1).tolist()
        starts, told = zip(*[(start, part.count) for part in layers[0] for start in part.starts], strict=True)
        counts = list(map(min, told, present))
        real = None if min(counts) == shape[1] else np.arange(shape[1]) < np.array(counts)[:, None]
        return Opened(
            layers, starts, counts, shape, real, tokens.reshape(-1) if real is None else tokens[real]
        )

    def _run(self, tokens: NDArray[Any], caches: Sequence[Any]) -> NDArray[np.float32]:
        """Normed states [sequences, count, hidden] after the last layer; zeros for padding."""
        opened = self._open(tokens, caches)
        step = opened.step(self._kept.of(opened.layers), self._chosen(len(opened.counts)))
        hidden, captured = self._decoder.run(opened.tokens, step)
        if len(captured):
            by_token = captured.transpose(1, 0, 2).reshape(len(opened.tokens), -1)
            self.captured = mx.array(padded_states(by_token, opened.shape, opened.real))
        return padded_states(hidden, opened.shape, opened.real)

    def _logits_of(self, hidden: NDArray[np.float32]) -> mx.array:
        """Logits of normed states [sequences, count, hidden], of those positions that the head is to project."""
        logits: mx.array = self.lm_head(mx.array(hidden))
        return logits if self._logits is None else self._logits(self.args, logits)


class Opened(Struct, frozen=True, gc=False):
    """The tokens that a pass adds to some sequences, and where they lie in each layer."""

    layers: list[list[InPlace]]
    starts: tuple[int, ...]
    counts: list[int]
    shape: tuple[int, int]  # sequences, and tokens of each, padding included
    real: NDArray[np.bool_] | None  # of this shape; None where there is no padding
    tokens: NDArray[Any]  # without padding

    def step(self, places: Places, adapters: Sequence[int] | None) -> Step:
        return Step(starts=self.starts, counts=self.counts, places=places, adapters=adapters)


def _moved(cache: Any, parts: Sequence[InPlace], *, held: bool = True) -> list[InPlace]:
    """Where the tokens of a layer lie now: the slots of prompts may have moved and grown since they were opened. Their
    arrays are not `held` between times, for MLX copies what somebody holds."""
    caches = cache.caches if isinstance(cache, JoinedAttention) else [cache]
    return [
        replace(part, arrays=each.batched.buffers if held else [], low=each.slot.index)
        if isinstance(each, AttentionInSlot)
        else part
        for each, part in zip(caches, parts, strict=True)
    ]


class KeptPlaces:
    """The memory of a step's sequences, passed to the kernels again only if it has changed since the step before."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, ...]] = []
        self._places: Places | None = None

    def of(self, layers: Sequence[Sequence[InPlace]]) -> Places:
        """The places of these layers. Raises `KernelError`."""
        parts = list(chain.from_iterable(layers))
        # All that is new at once: to ask each array where it lies would compute it alone.
        mx.eval([part.arrays for part in parts])
        known = list(map(_identity, parts))
        if self._places is None or known != self._known:
            self._places = _places(layers)
            self._known = known
        return self._places


def _identity(part: InPlace) -> tuple[Any, ...]:
    """What `_view` depends on."""
    # After some assignments to a part of an array, the same object lies elsewhere.
    arrays = [
        (addressof(c_char.from_buffer(each)), each.shape) for each in (*part.arrays, *(part.shared or ()))
    ]
    return arrays, part.low, len(part.starts), part.shift, part.form, part.shared_tokens


def _places(layers: Sequence[Sequence[InPlace]]) -> Places:
    return Places([[_view(part) for part in layer] for layer in layers])


def padded_states(
    states: NDArray[np.float32], shape: tuple[int, int], real: NDArray[np.bool_] | None
) -> NDArray[np.float32]:
    """States [tokens, size] of the `real` tokens (None for all), as [*shape, size] with zeros for the rest."""
    if real is None:
        return states.reshape(*shape, -1)
    whole = np.zeros((*shape, states.shape[-1]), np.float32)
    whole[real] = states
    return whole


def _view(part: InPlace) -> AnyKV:
    """The memory of the sequences that a step computes. Nothing may hold it afterwards: MLX copies an array instead of
    changing it while something else refers to it."""
    slots = slice(part.low, part.low + len(part.starts))
    arrays = [np.asarray(array)[slots] for array in part.arrays]
    if part.form is None:
        keys, values = arrays
        if part.shared is None:
            return KV(keys, values, part.shift)
        shared = [np.asarray(array)[:, :, : part.shared_tokens] for array in part.shared]
        return KV(keys, values, part.shift, (shared[0], shared[1]))
    return PackedKV(tuple(arrays), *part.form)


def _addition(down: mx.array, up: mx.array) -> Addition | None:
    """What one adapter adds to one matrix, [in, rank] and [rank, out]; None if it adds nothing."""
    if not mx.any(up != 0).item():
        return None
    matrices = (np.ascontiguousarray(np.asarray(each.astype(mx.float32)).T) for each in (down, up))
    return Addition(*map(Matrix.dense, matrices))
