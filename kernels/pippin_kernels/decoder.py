"""A decoder of whole layers: its description, and its steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pippin_kernels.binding import ACTIVATIONS, Activation, Floats, KernelError, Kernels, check
from pippin_kernels.kv import KV, describe
from pippin_kernels.matrix import Matrix, address
from pippin_kernels.structures import CLayer, CRope, CShape


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary positions: `inverse_frequencies` [dims / 2]. `stretch` multiplies the rotated numbers."""

    inverse_frequencies: Floats
    interleaved: bool = False
    scale: float = 1.0
    stretch: float = 1.0

    def structure(self) -> CRope:
        frequencies = self.inverse_frequencies
        return CRope(address(frequencies), frequencies.size * 2, self.interleaved, self.scale, self.stretch)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Norms are float32 [hidden], those of queries and keys [head_dim], sinks [heads]; None where there is none."""

    query: Matrix
    key: Matrix
    value: Matrix
    output: Matrix
    gate: Matrix
    up: Matrix
    down: Matrix
    input_norm: Floats
    mlp_norm: Floats
    attention_out_norm: Floats | None = None
    mlp_out_norm: Floats | None = None
    query_norm: Floats | None = None
    key_norm: Floats | None = None
    sinks: Floats | None = None
    rope: int | None = 0  # which of the decoder's
    window: int = 0  # tokens that a query sees; 0 for all


@dataclass(frozen=True, kw_only=True)
class Shape:
    embedding: Matrix
    final_norm: Floats
    layers: tuple[Layer, ...]
    ropes: tuple[Rope, ...]
    heads: int
    kv_heads: int
    head_dim: int
    activation: Activation = "silu"
    norm_eps: float
    attention_scale: float
    attention_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0

    @property
    def hidden(self) -> int:
        return self.embedding.columns

    @property
    def nbytes(self) -> int:
        matrices = [getattr(layer, name) for layer in self.layers for name in MATRICES]
        return self.embedding.nbytes + sum(matrix.nbytes for matrix in matrices)


MATRICES = ("query", "key", "value", "output", "gate", "up", "down")
NORMS = ("input_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm", "query_norm", "key_norm", "sinks")


class Decoder:
    """Runs tokens through all layers. Holds the weights, and the kernels' threads."""

    def __init__(self, kernels: Kernels, shape: Shape) -> None:
        """Raises `KernelError` where weights do not fit the shape."""
        self.shape = shape
        self.kernels = kernels
        self._check_norms()
        layers = (CLayer * len(shape.layers))(*map(_layer, shape.layers))
        ropes = (CRope * len(shape.ropes))(*(rope.structure() for rope in shape.ropes))
        first = shape.layers[0]
        structure = CShape(
            shape.embedding.structure(),
            address(shape.final_norm),
            layers,
            ropes,
            len(layers),
            len(ropes),
            shape.hidden,
            first.gate.rows,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            ACTIVATIONS.index(shape.activation),
            shape.norm_eps,
            shape.attention_scale,
            shape.attention_softcap,
            shape.embedding_scale,
            shape.residual_scale,
        )
        self._decoder: int | None = check(kernels.library.pk_decoder_open(kernels.context, structure))

    def _check_norms(self) -> None:
        shape = self.shape
        sizes = dict.fromkeys(NORMS, shape.hidden)
        sizes |= {"query_norm": shape.head_dim, "key_norm": shape.head_dim, "sinks": shape.heads}
        norms = [(getattr(layer, name), size) for layer in shape.layers for name, size in sizes.items()]
        for norm, size in [*norms, (shape.final_norm, shape.hidden)]:
            if norm is None:
                continue
            if norm.shape != (size,) or norm.dtype != np.float32 or not norm.flags.c_contiguous:
                raise KernelError(f"A norm {list(norm.shape)} of {norm.dtype} is not float32 [{size}].")
            if not np.isfinite(norm).all():
                raise KernelError("A norm holds numbers that are not finite: the file is damaged.")

    def run(self, tokens: NDArray[np.int32], starts: Sequence[int], kv: Sequence[KV]) -> Floats:
        """Run tokens [slots, count]; those of slot i follow starts[i] earlier ones. Their keys and values are written
        into `kv`, one for each layer. Gives the normed states [slots, count, hidden]. Raises `KernelError`."""
        if self._decoder is None:
            raise KernelError("The decoder was closed.")
        shape = self.shape
        tokens = np.ascontiguousarray(tokens, np.int32)
        slots, count = tokens.shape
        first = np.array(starts, np.int64)
        if first.shape != (slots,) or len(kv) != len(shape.layers):
            raise KernelError("A step takes a start for each slot, and keys and values for each layer.")
        table = describe(kv)
        if kv[0].keys.shape[0] < slots or kv[0].keys.shape[1::2] != (shape.kv_heads, shape.head_dim):
            raise KernelError("Keys and values do not have the slots and heads of the step.")
        hidden = np.empty((slots, count, shape.hidden), np.float32)
        arguments = address(tokens), slots, count, address(first), address(table), address(hidden)
        check(self.kernels.library.pk_decoder_run(self._decoder, *arguments))
        return hidden

    def close(self) -> None:
        if self._decoder is not None:
            self.kernels.library.pk_decoder_close(self._decoder)
            self._decoder = None

    def __del__(self) -> None:
        if getattr(self, "_decoder", None) is not None:
            self.close()


def _layer(layer: Layer) -> CLayer:
    matrices = [getattr(layer, name).structure() for name in MATRICES]
    norms = [address(getattr(layer, name)) for name in NORMS]
    return CLayer(*matrices, *norms, -1 if layer.rope is None else layer.rope, layer.window)
