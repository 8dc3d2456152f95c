"""The layers of an encoder: their description, and their steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pippin_kernels.binding import ACTIVATIONS, Activation, Floats, Kernels, check
from pippin_kernels.decoder import Rope
from pippin_kernels.errors import KernelError
from pippin_kernels.matrix import Matrix, address
from pippin_kernels.structures import CEncoderLayer, CEncoderShape, CMatrix, CRope

MATRICES = ("query", "key", "value", "output", "gate", "up", "down")
NORMS = ("attention_norm", "attention_norm_bias", "mlp_norm", "mlp_norm_bias")


@dataclass(frozen=True, kw_only=True)
class EncoderLayer:
    """h = norm(x + attention(x)); y = norm(h + mlp(h)). Where norms come first, h = x + attention(norm(x)); y = h +
    mlp(norm(h)). mlp(x) is down(activation(up(x))), or with a gate down(activation(gate(x)) * up(x)). Norms are float32
    [hidden]; None is one that is left out, which the first of attention may be where norms come first."""

    query: Matrix
    key: Matrix
    value: Matrix
    output: Matrix
    gate: Matrix | None = None
    up: Matrix
    down: Matrix
    attention_norm: Floats | None
    attention_norm_bias: Floats | None = None
    mlp_norm: Floats
    mlp_norm_bias: Floats | None = None
    rope: int | None = None  # index into the encoder's ropes
    window: int = 0  # positions that a query sees on each side of its own; 0 for all

    def structure(self) -> CEncoderLayer:
        given = [getattr(self, name) for name in MATRICES]
        matrices = [CMatrix() if matrix is None else matrix.structure() for matrix in given]
        norms = [address(getattr(self, name)) for name in NORMS]
        return CEncoderLayer(*matrices, *norms, -1 if self.rope is None else self.rope, self.window)


class Encoder:
    """Runs the states of sequences through all layers. Holds the weights, and the kernels' threads."""

    def __init__(
        self,
        kernels: Kernels,
        layers: tuple[EncoderLayer, ...],
        *,
        heads: int,
        norm_eps: float,
        activation: Activation = "gelu",
        norms_first: bool = False,
        ropes: tuple[Rope, ...] = (),
    ) -> None:
        """Raises `KernelError` where weights do not fit each other."""
        if not layers:
            raise KernelError("An encoder has at least one layer.")
        first = layers[0].query
        self.hidden = first.columns
        self.layers, self.ropes, self.kernels = layers, ropes, kernels
        for layer in layers:
            self._check_norms(layer)
        dim = first.rows // heads
        shape = CEncoderShape(
            (CEncoderLayer * len(layers))(*(layer.structure() for layer in layers)),
            (CRope * len(ropes))(*(rope.structure() for rope in ropes)),
            len(layers),
            len(ropes),
            self.hidden,
            layers[0].up.rows,
            heads,
            dim,
            ACTIVATIONS.index(activation),
            norms_first,
            norm_eps,
            dim**-0.5 if dim else 0.0,
        )
        self._encoder: int | None = check(kernels.library.pk_encoder_open(kernels.context, shape))

    def _check_norms(self, layer: EncoderLayer) -> None:
        for norm in (getattr(layer, name) for name in NORMS):
            if norm is None:
                continue
            if norm.shape != (self.hidden,) or norm.dtype != np.float32 or not norm.flags.c_contiguous:
                raise KernelError(
                    f"A norm {list(norm.shape)} of {norm.dtype} is not float32 [{self.hidden}]."
                )
            if not np.isfinite(norm).all():
                raise KernelError("A norm holds numbers that are not finite: the file is damaged.")

    @property
    def nbytes(self) -> int:
        """Of all matrices."""
        matrices = [getattr(layer, name) for layer in self.layers for name in MATRICES]
        return sum(matrix.nbytes for matrix in matrices if matrix is not None)

    def run(self, states: Floats, lengths: Sequence[int], layer: int | None = None) -> None:
        """Run states [tokens, hidden] of sequences that lie one behind the other through all layers, or through one, in
        place. Raises `KernelError`."""
        if self._encoder is None:
            raise KernelError("The encoder was closed.")
        counts = np.array(lengths, np.int64)
        right = states.dtype == np.float32 and states.flags.c_contiguous and states.flags.writeable
        if not right or counts.size == 0 or states.shape != (counts.sum(), self.hidden):
            raise KernelError("States are float32 [tokens, hidden], as many as the sequences have tokens.")
        library, given = self.kernels.library, (address(states), counts.size, address(counts))
        if layer is None:
            check(library.pk_encoder_run(self._encoder, *given))
        else:
            check(library.pk_encoder_layer_run(self._encoder, layer, *given))

    def close(self) -> None:
        if self._encoder is not None:
            self.kernels.library.pk_encoder_close(self._encoder)
            self._encoder = None

    def __del__(self) -> None:
        if getattr(self, "_encoder", None) is not None:
            self.close()
