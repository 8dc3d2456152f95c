"""Computes the size of a model from the shape of its architecture in config.json.

Only matrices are counted. Norms and biases are less than one weight in a thousand.
"""

from typing import Final

from msgspec import Struct

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
    """A decoder, or an encoder of texts."""

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
