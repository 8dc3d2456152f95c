"""A decoder of whole layers: its description, and its steps."""

import ctypes as c
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pippin_kernels.binding import ACTIVATIONS, Activation, Floats, KernelError, Kernels, Step, check
from pippin_kernels.matrix import Experts, Matrix, address
from pippin_kernels.structures import CAddition, CLayer, CMatrix, CRope, CShape


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
class Network:
    """down(activation(gate(x)) * up(x))"""

    gate: Matrix
    up: Matrix
    down: Matrix

    @property
    def nbytes(self) -> int:
        return self.gate.nbytes + self.up.nbytes + self.down.nbytes


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Norms are float32 [hidden], those of queries and keys [head_dim], sinks [heads]; None where there is none."""

    query: Matrix
    key: Matrix
    value: Matrix
    output: Matrix
    network: Network | Experts
    input_norm: Floats
    mlp_norm: Floats
    attention_out_norm: Floats | None = None
    mlp_out_norm: Floats | None = None
    query_norm: Floats | None = None
    key_norm: Floats | None = None
    sinks: Floats | None = None
    rope: int | None = 0  # which of the decoder's
    window: int = 0  # tokens that a query sees; 0 for all


@dataclass(frozen=True)
class Addition:
    """What an adapter adds to a product: up (down x), of rank down.rows."""

    down: Matrix
    up: Matrix

    def structure(self) -> CAddition:
        """As the library sees it; good as long as the addition is held."""
        return CAddition(self.down.structure(), self.up.structure())


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
        matrices = [getattr(layer, name) for layer in self.layers for name in (*ATTENTION, "network")]
        return self.embedding.nbytes + sum(matrix.nbytes for matrix in matrices)

    def structure(self) -> CShape:
        """As the library sees it; good as long as the shape is held. Raises `KernelError` for norms that do not fit."""
        self._check_norms()
        experts = [
            c.pointer(layer.network.structure()) if isinstance(layer.network, Experts) else None
            for layer in self.layers
        ]
        layers = (CLayer * len(self.layers))(*map(_layer, self.layers, experts))
        ropes = (CRope * len(self.ropes))(*(rope.structure() for rope in self.ropes))
        return CShape(
            self.embedding.structure(),
            address(self.final_norm),
            layers,
            ropes,
            len(layers),
            len(ropes),
            self.hidden,
            self.heads,
            self.kv_heads,
            self.head_dim,
            ACTIVATIONS.index(self.activation),
            self.norm_eps,
            self.attention_scale,
            self.attention_softcap,
            self.embedding_scale,
            self.residual_scale,
        )

    def _check_norms(self) -> None:
        sizes = dict.fromkeys(NORMS, self.hidden)
        sizes |= {"query_norm": self.head_dim, "key_norm": self.head_dim, "sinks": self.heads}
        for layer in self.layers:
            for name, size in sizes.items():
                check_norm(getattr(layer, name), size)
        check_norm(self.final_norm, self.hidden)


ATTENTION = ("query", "key", "value", "output")
NETWORK = ("gate", "up", "down")
Projection = Literal["query", "key", "value", "output", "gate", "up", "down"]
PROJECTIONS: tuple[Projection, ...] = ("query", "key", "value", "output", "gate", "up", "down")
NORMS = ("input_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm", "query_norm", "key_norm", "sinks")


def check_norm(norm: Floats | None, size: int) -> None:
    """Raises `KernelError` for the weights of a norm that are damaged, or not of this size; None is no norm."""
    if norm is None:
        return
    if norm.shape != (size,) or norm.dtype != np.float32 or not norm.flags.c_contiguous:
        raise KernelError(f"A norm {list(norm.shape)} of {norm.dtype} is not float32 [{size}].")
    if not np.isfinite(norm).all():
        raise KernelError("A norm holds numbers that are not finite: the file is damaged.")


class Decoder:
    """Runs tokens through all layers. Holds the weights, and the kernels' threads."""

    def __init__(self, kernels: Kernels, shape: Shape) -> None:
        """Raises `KernelError` where weights do not fit the shape."""
        self.shape = shape
        self.kernels = kernels
        structure = shape.structure()
        self._additions: dict[tuple[int, Projection], Sequence[Addition | None]] = {}
        self._captured = 0
        self._decoder: int | None = check(kernels.library.pk_decoder_open(kernels.context, structure))

    def adapt(self, layer: int, projection: Projection, additions: Sequence[Addition | None]) -> None:
        """From now on adapter i + 1 adds this to a projection of a layer. Raises `KernelError` where it does not
        fit."""
        table = (CAddition * len(additions))(
            *(
                CAddition() if each is None else CAddition(each.down.structure(), each.up.structure())
                for each in additions
            )
        )
        which = PROJECTIONS.index(projection)
        check(self.kernels.library.pk_decoder_adapt(self._open(), layer, which, table, len(additions)))
        self._additions[layer, projection] = additions  # whose memory is used from now on

    def capture(self, layers: Sequence[int]) -> None:
        """From now on `run` also gives the states after these layers, which ascend. Raises `KernelError` where the
        decoder has no such layer."""
        wanted = np.array(layers, np.int32)
        check(self.kernels.library.pk_decoder_capture(self._open(), address(wanted), len(wanted)))
        self._captured = len(wanted)

    def run(self, tokens: NDArray[np.int32], step: Step) -> tuple[Floats, Floats]:
        """Run tokens [all of the step]: their keys and values are written into the step's. Gives the normed states
        [tokens, hidden], and those after each captured layer [captured, tokens, hidden]. Raises `KernelError`."""
        tokens = np.ascontiguousarray(tokens, np.int32)
        self._check_step(step, len(self.shape.layers))
        if tokens.shape != (step.tokens,):
            raise KernelError("A step has as many tokens as its sequences take.")
        hidden = np.empty((1 + self._captured, step.tokens, self.shape.hidden), np.float32)
        structure = step.structure()
        check(self.kernels.library.pk_decoder_run(self._open(), structure, address(tokens), address(hidden)))
        return hidden[0], hidden[1:]

    def run_layer(self, layer: int, states: Floats, step: Step) -> Floats:
        """States [tokens of the step, hidden] after one layer, whose keys and values alone the step has."""
        states = np.array(states, np.float32)
        self._check_step(step, 1)
        if states.shape != (step.tokens, self.shape.hidden):
            raise KernelError("A layer takes a state for each token of the step.")
        check(self.kernels.library.pk_decoder_layer(self._open(), layer, step.structure(), address(states)))
        return states

    def _check_step(self, step: Step, layers: int) -> None:
        check_places(self.shape, step, layers)

    def _open(self) -> int:
        if self._decoder is None:
            raise KernelError("The decoder was closed.")
        return self._decoder

    def close(self) -> None:
        if self._decoder is not None:
            self.kernels.library.pk_decoder_close(self._decoder)
            self._decoder = None

    def __del__(self) -> None:
        if getattr(self, "_decoder", None) is not None:
            self.close()


def check_places(shape: Shape, step: Step, layers: int) -> None:
    """Raises `KernelError` for a step whose keys and values are those of another decoder."""
    if step.places.layers != layers or step.places.heads != (shape.kv_heads, shape.head_dim):
        raise KernelError("Keys and values do not have the layers and heads of the decoder.")


def _layer(layer: Layer, experts: Any) -> CLayer:
    matrices = [getattr(layer, name).structure() for name in ATTENTION]
    network = layer.network
    if isinstance(network, Network):
        matrices += [getattr(network, name).structure() for name in NETWORK]
    else:
        matrices += [CMatrix()] * len(NETWORK)
    norms = [address(getattr(layer, name)) for name in NORMS]
    return CLayer(*matrices, *norms, experts, -1 if layer.rope is None else layer.rope, layer.window)
