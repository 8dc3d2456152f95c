"""A model whose steps the kernels compute: called as mlx-lm's models are, on the caches that those are called on."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache
from numpy.typing import NDArray
from pippin_kernels import KV, Decoder, KernelError, Kernels, KVTable, Matrix

from pippin.engines.cpu.architectures import architecture_of, describe


class KernelHead(nn.Module):  # type: ignore[misc] # mlx has no types
    """The projection onto the vocabulary. A module of the name that mlx-lm gives it, so that it is narrowed as theirs
    are."""

    def __init__(self, kernels: Kernels, matrix: Matrix) -> None:
        super().__init__()
        self._kernels = kernels
        self._matrix = matrix

    def __call__(self, x: mx.array) -> mx.array:
        """Of states [..., hidden]: [..., vocabulary]."""
        states = np.asarray(x)
        products = self._kernels.product(self._matrix, states.reshape(-1, states.shape[-1]))
        return mx.array(products.reshape(*states.shape[:-1], -1))


class KernelDecoder(nn.Module):  # type: ignore[misc] # mlx has no types
    """Takes tokens and caches, and gives logits, at once: nothing is left to be evaluated."""

    def __init__(self, model: nn.Module, threads: int) -> None:
        """Of a model that `architectures.why_not` has no objection to, whose weights it takes. Raises `ValueError` for
        weights that are damaged."""
        super().__init__()
        self.args = model.args
        self.model_type = model.model_type
        self._architecture = architecture_of(model)
        shape, head = describe(model)
        kernels = Kernels(threads)
        self._decoder = Decoder(kernels, shape)
        self.lm_head = KernelHead(kernels, shape.embedding if head is None else head)
        self._table: KVTable | None = None
        self._parts: list[mx.array] = []
        self.weight_bytes = shape.nbytes + (0 if head is None else head.nbytes)

    @property
    def layers(self) -> list[None]:
        """As many as there are: mlx-lm makes a cache for each."""
        return [None] * len(self._decoder.shape.layers)

    @property
    def instruction_set(self) -> str:
        return self._decoder.kernels.instruction_set

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        """Logits [slots, count, vocabulary] of tokens [slots, count], which follow what lies in the caches."""
        tokens = np.asarray(inputs)
        caches = [KVCache() for _ in self.layers] if cache is None else cache
        hidden = self._run(tokens, caches)
        logits: mx.array = self.lm_head(mx.array(hidden))
        assert self._architecture is not None
        return self._architecture.logits(self.args, logits)

    def _run(self, tokens: NDArray[Any], caches: list[Any]) -> NDArray[np.float32]:
        count = tokens.shape[1]
        start = caches[0].offset
        if caches[0].keys is None or start + count > caches[0].keys.shape[2]:
            self._grow(caches, tokens.shape[0], count)
        parts = [part for layer in caches for part in (layer.keys, layer.values)]
        hidden = self._decoder.run(tokens, [start] * len(tokens), self._described(parts))
        for layer in caches:
            layer.offset = start + count
        return hidden

    def _grow(self, caches: list[Any], rows: int, count: int) -> None:
        shape = self._decoder.shape
        for layer in caches:
            new = mx.zeros((rows, shape.kv_heads, count, shape.head_dim))
            layer.update_and_fetch(new, new)
            layer.offset -= count
        mx.eval([layer.state for layer in caches])

    def _described(self, parts: list[mx.array]) -> KVTable:
        """Keys and values of all layers, layer by layer, as the kernels take them; the same until arrays change."""
        same = len(parts) == len(self._parts) and all(
            mine is theirs for mine, theirs in zip(parts, self._parts, strict=True)
        )
        if self._table is None or not same:
            memory = [np.asarray(part) for part in parts]
            self._table = KVTable([KV(*pair) for pair in zip(memory[::2], memory[1::2], strict=True)])
            self._parts = parts
        return self._table


__all__ = ["KernelDecoder", "KernelError"]
