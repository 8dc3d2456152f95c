"""A model whose steps the kernels compute: called as mlx-lm's models are, on the caches that those are called on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache
from numpy.typing import NDArray
from pippin_kernels import KV, Decoder, Kernels, Matrix

from pippin.engines.cpu.architectures import architecture_of, describe
from pippin.engines.language.kv_cache.kinds.attention import (
    AttentionInSlot,
    BatchedAttention,
    JoinedAttention,
)


class KernelHead(nn.Module):  # type: ignore[misc] # mlx has no types
    """The projection onto the vocabulary. A module of the name that mlx-lm gives it, so that it is narrowed to the
    positions that are sampled from as theirs are."""

    def __init__(self, kernels: Kernels, matrix: Matrix) -> None:
        super().__init__()
        self._kernels = kernels
        self._matrix = matrix

    def __call__(self, x: mx.array) -> mx.array:
        """Of states [..., hidden]: [..., vocabulary]."""
        states = np.asarray(x)
        products = self._kernels.product(self._matrix, states.reshape(-1, states.shape[-1]))
        return mx.array(products.reshape(*states.shape[:-1], -1))


@dataclass(frozen=True)
class Opened:
    """Where the sequences of a step lie: keys and values of each layer, [slots, heads, capacity, size], of which they
    take the slots from `low` on, and the tokens that each has."""

    layers: list[list[mx.array]]
    low: int
    lengths: list[int]


class KernelDecoder(nn.Module):  # type: ignore[misc] # mlx has no types
    """Takes tokens and caches, and gives logits, at once: nothing is left to be evaluated."""

    def __init__(self, model: nn.Module, threads: int, *, rounds: bool = False) -> None:
        """Of a model that `architectures.why_not` has no objection to, whose weights it takes. With `rounds` vectors
        are int8. Raises `ValueError` for weights that are damaged."""
        super().__init__()
        self.args = model.args
        self.model_type = model.model_type
        self._logits = architecture_of(model).logits  # type: ignore[union-attr] # `why_not` knew it
        shape, head = describe(model)
        kernels = Kernels(threads)
        if rounds:
            kernels.round_activations()
        self._decoder = Decoder(kernels, shape)
        self.lm_head = KernelHead(kernels, shape.embedding if head is None else head)
        self.weight_bytes = shape.nbytes + (0 if head is None else head.nbytes)
        self.instruction_set = kernels.instruction_set

    @property
    def layers(self) -> list[None]:
        """As many as there are: mlx-lm makes a cache for each."""
        return [None] * len(self._decoder.shape.layers)

    def __call__(self, inputs: mx.array, cache: Sequence[Any] | None = None) -> mx.array:
        """Logits [slots, count, vocabulary] of tokens [slots, count], which follow what lies in the caches."""
        tokens = np.asarray(inputs)
        # Blocks for the prefix cache may be on their way from memory that is written here.
        mx.synchronize()
        hidden = self._run(tokens, [KVCache() for _ in self.layers] if cache is None else cache)
        found: mx.array = self._logits(self.args, self.lm_head(mx.array(hidden)))
        return found

    def _run(self, tokens: NDArray[Any], caches: Sequence[Any]) -> NDArray[np.float32]:
        """Normed states [slots, count, hidden] after the last layer."""
        if isinstance(caches[0], JoinedAttention):
            return self._run_apart(tokens, caches)
        opened = self._open(caches, *tokens.shape)
        slots = slice(opened.low, opened.low + len(opened.lengths))
        # Views of the buffers last for this step only: MLX copies what it should change while others look at it.
        layers = [KV(*(np.asarray(buffer)[slots] for buffer in layer)) for layer in opened.layers]
        hidden: NDArray[np.float32] = self._decoder.run(tokens, opened.lengths, layers)
        if not isinstance(caches[0], BatchedAttention):  # whose table of slots is told by its group
            for cache in caches:
                cache.offset = opened.lengths[0] + tokens.shape[1]
        return hidden

    def _run_apart(self, tokens: NDArray[Any], joined: Sequence[JoinedAttention]) -> NDArray[np.float32]:
        """Several prompts, padded on the right: one after the other, without the padding."""
        hidden = np.zeros((*tokens.shape, self._decoder.shape.hidden), np.float32)
        for row, count in enumerate(joined[0].counts):
            own = [layer.caches[row] for layer in joined]
            hidden[row, :count] = self._run(tokens[row : row + 1, :count], own)[0]
        return hidden

    def _open(self, caches: Sequence[Any], rows: int, count: int) -> Opened:
        """Where `count` tokens of each of so many sequences can be written."""
        shape = self._decoder.shape
        match caches[0]:
            case BatchedAttention(slots=slots):
                buffers = [cache.opened(shape.kv_heads, shape.head_dim) for cache in caches]
                return Opened(buffers, slots.low, slots.lengths[slots.low : slots.high])
            case AttentionInSlot() as first:
                buffers = [cache.opened(shape.kv_heads, shape.head_dim) for cache in caches]
                return Opened(buffers, first.index, [first.offset])
            case KVCache() as first:
                if first.keys is None or first.offset + count > first.keys.shape[2]:
                    self._enlarge(caches, rows, count)
                return Opened([[cache.keys, cache.values] for cache in caches], 0, [first.offset] * rows)
        raise TypeError(f"the kernels do not write into a {type(caches[0]).__name__}")

    def _enlarge(self, caches: Sequence[KVCache], rows: int, count: int) -> None:
        """As mlx-lm does it."""
        shape = self._decoder.shape
        size = rows, shape.kv_heads, count, shape.head_dim
        for cache in caches:
            # Two arrays: a cache that they fill takes them as its memory.
            cache.update_and_fetch(mx.zeros(size), mx.zeros(size))
            cache.offset -= count
        mx.eval([(cache.keys, cache.values) for cache in caches])
