"""The layers of an encoder: their description, and their steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pippin_kernels.binding import ACTIVATIONS, Activation, Floats, Kernels, check
from pippin_kernels.errors import KernelError
from pippin_kernels.matrix import Matrix, address
from pippin_kernels.structures import CEncoderLayer, CEncoderShape

MATRICES = ("query", "key", "value", "output", "up", "down")
NORMS = ("attention_norm", "attention_norm_bias", "mlp_norm", "mlp_norm_bias")


@dataclass(frozen=True, kw_only=True)
class EncoderLayer:
    """h = norm(x + attention(x)); y = norm(h + down(activation(up(h)))). Norms are float32 [hidden]."""

    query: Matrix
    key: Matrix
    value: Matrix
    output: Matrix
    up: Matrix
    down: Matrix
    attention_norm: Floats
    attention_norm_bias: Floats | None = None
    mlp_norm: Floats
    mlp_norm_bias: Floats | None = None

    def structure(self) -> CEncoderLayer:
        matrices = [getattr(self, name).structure() for name in MATRICES]
        return CEncoderLayer(*matrices, *(address(getattr(self, name)) for name in NORMS))


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
    ) -> None:
        """Raises `KernelError` where weights do not fit each other."""
        if not layers:
            raise KernelError("An encoder has at least one layer.")
        first = layers[0].query
        self.hidden = first.columns
        self.layers, self.kernels = layers, kernels
        for layer in layers:
            self._check_norms(layer)
        dim = first.rows // heads
        shape = CEncoderShape(
            (CEncoderLayer * len(layers))(*(layer.structure() for layer in layers)),
            len(layers),
            self.hidden,
            layers[0].up.rows,
            heads,
            dim,
            ACTIVATIONS.index(activation),
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

    def run(self, states: Floats, lengths: Sequence[int]) -> None:
        """Run states [tokens, hidden] of sequences that lie one behind the other through all layers, in place. Raises
        `KernelError`."""
        if self._encoder is None:
            raise KernelError("The encoder was closed.")
        counts = np.array(lengths, np.int64)
        right = states.dtype == np.float32 and states.flags.c_contiguous and states.flags.writeable
        if not right or counts.size == 0 or states.shape != (counts.sum(), self.hidden):
            raise KernelError("States are float32 [tokens, hidden], as many as the sequences have tokens.")
        check(
            self.kernels.library.pk_encoder_run(self._encoder, address(states), counts.size, address(counts))
        )

    def close(self) -> None:
        if self._encoder is not None:
            self.kernels.library.pk_encoder_close(self._encoder)
            self._encoder = None

    def __del__(self) -> None:
        if getattr(self, "_encoder", None) is not None:
            self.close()
