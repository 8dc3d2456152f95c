"""Picks models for this machine from the list that ships with the package."""

from importlib import resources
from typing import Final, Literal, get_args

from msgspec import Struct

from pippin.catalog.footprint import IN_KERNELS, PROCESS_BYTES, runs_on_kernels
from pippin.config.options.model import ModelOptions
from pippin.core.decoding import from_json

STORED_BYTES: Final = 2  # per weight, key or value that is not quantised


class Vision(Struct, frozen=True):
    """A vision tower. Conversions to MLX leave it in 16 bits."""

    layers: int
    hidden: int
    intermediate: int
    projections: tuple[tuple[int, int, int], ...]
    """Matrices between the pixels, the tower and the decoder: (count, inputs, outputs)."""

    @property
    def weights(self) -> int:
        layer = 4 * self.hidden**2 + 2 * self.hidden * self.intermediate
        return self.layers * layer + sum(
            count * inputs * outputs for count, inputs, outputs in self.projections
        )


class Shape(Struct, frozen=True, kw_only=True):
    """A decoder, or an encoder of texts. Only matrices are counted: norms and biases are less than one weight in a
    thousand."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of the feed-forward part, or of each expert
    vocab: int
    tables: int = 1  # stored tables of vocab x hidden weights: 2 if the output has its own
    experts: int = 0
    gated: bool = True  # three matrices in a feed-forward part, else two
    bits: float = 4.5
    """Bits per stored weight, including its share of the group's: 4, plus two 16-bit numbers per 64 weights."""
    expert_bits: float | None = None  # if experts are stored in other bits than the rest
    full_layers: int | None = None  # layers that attend to the whole context; None for all
    window: int = 0  # tokens that the other layers attend to
    vision: Vision | None = None

    @property
    def weights(self) -> int:
        """The number of weights; a table counts once for each time that it is stored."""
        return self._common_weights + self._expert_weights + (self.vision.weights if self.vision else 0)

    @property
    def stored_bytes(self) -> int:
        quantised = self._common_weights * self.bits
        quantised += self._expert_weights * (self.expert_bits or self.bits)
        return int(quantised / 8) + (self.vision.weights * STORED_BYTES if self.vision else 0)

    def context_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of one client's context, in 16 bits."""
        full = self.layers if self.full_layers is None else self.full_layers
        remembered = full * tokens + (self.layers - full) * min(tokens, self.window)
        return remembered * 2 * self.kv_heads * self.head_dim * STORED_BYTES

    @property
    def _common_weights(self) -> int:
        """Weights of embeddings, attention, and the feed-forward part or the expert router."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        feed_forward = self.experts * self.hidden if self.experts else self._feed_forward
        return self.tables * self.vocab * self.hidden + self.layers * (attention + feed_forward)

    @property
    def _expert_weights(self) -> int:
        return self.layers * self.experts * self._feed_forward

    @property
    def _feed_forward(self) -> int:
        return (3 if self.gated else 2) * self.hidden * self.intermediate


Purpose = Literal["code", "chat", "vision", "embed"]
PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)
FLOAT32_BYTES: Final = 4
CONTEXT: Final = 32 * 1024  # tokens of one client
LISTED: Final = "November 2026"
"""When the list was last reviewed. Each name and shape was then found in several public repositories; sizes are
computed from the shapes."""


class Recommended(Struct, frozen=True, kw_only=True, rename={"purposes": "for"}):
    """An entry of the list."""

    id: str
    purposes: tuple[Purpose, ...]  # the main purpose comes first
    tools: bool
    architecture: str  # `model_type` in its config.json
    why: str
    shape: Shape

    @property
    def stored(self) -> int:
        """Bytes of its weights as downloaded."""
        return self.shape.stored_bytes

    def needed(self, *, on_cpu: bool) -> int:
        """Bytes of the weights, the process, and one client's context if the model keeps one.

        On a CPU, the kernels use some models as stored, and others become float32; keys and values are float32.
        """
        context = 0 if self.purposes[0] == "embed" else self.shape.context_bytes(CONTEXT)
        if not on_cpu:
            return PROCESS_BYTES + self.stored + context
        decodes = self.purposes[0] != "embed"  # the kernels run no encoders
        if decodes and runs_on_kernels({"model_type": self.architecture}, ModelOptions()):
            weights = int(self.stored * IN_KERNELS)
        else:
            weights = self.shape.weights * FLOAT32_BYTES
        return PROCESS_BYTES + weights + context * FLOAT32_BYTES // STORED_BYTES


def recommended() -> list[Recommended]:
    text = resources.files("pippin.cli.fitting").joinpath("recommended.json").read_bytes()
    return from_json(text, list[Recommended])


def pick(listed: list[Recommended], purpose: Purpose, memory: int, *, on_cpu: bool) -> list[Recommended]:
    """The models for a purpose that fit into `memory` bytes, the largest first; models made for the purpose lead."""
    fitting = [each for each in listed if purpose in each.purposes and each.needed(on_cpu=on_cpu) <= memory]
    return sorted(fitting, key=lambda each: (each.purposes[0] != purpose, -each.stored))
