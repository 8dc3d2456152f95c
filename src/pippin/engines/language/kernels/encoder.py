"""Runs the layers of encoders on the kernels instead of mlx-vlm: without padding, and without an array for each
operation. BERT, XLM-RoBERTa and ModernBERT have whole layers here."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray
from pippin_kernels import Encoder, EncoderLayer, Kernels

from pippin.config.options.model import CpuActivations
from pippin.engines.language.kernels.agreement import require_agreement
from pippin.engines.language.kernels.architectures import Ropes, rope_of
from pippin.engines.language.kernels.matrices import (
    floats,
    matrix_of,
    round_activations,
    sizes,
    why_no_matrix,
)
from pippin.engines.language.upstream.library import dequantize_model

BERT = ("mlx_vlm.models.bert.bert", "mlx_vlm.models.xlm_roberta.xlm_roberta")
MODERNBERT = "mlx_vlm.models.modernbert.modernbert"

SAMPLED_TOKENS = 3
MOST_SAMPLED = 160
"""The most tokens with which a layer is compared: a few more than a window of a usual size."""


def why_not(model: nn.Module) -> str | None:
    """Why the kernels cannot run the layers of this encoder, or None. Looks at no weight."""
    known = type(model).__module__
    if known not in (*BERT, MODERNBERT):
        return f"the architecture {getattr(model, 'model_type', type(model).__name__)!r} is not one that they know"
    if (activation := getattr(model, "activation", "gelu")) != "gelu":
        return f"its activation is {activation!r}"
    try:
        if known == MODERNBERT:
            modules = [
                module
                for layer in model.layers
                for module in (layer.attn.Wqkv, layer.attn.Wo, layer.mlp.Wi, layer.mlp.Wo)
            ]
            for layer in model.layers:
                rope_of(layer.attn.rotary_emb)
        else:
            modules = [module for layer in model.encoder.layer for module in _projections(layer).values()]
    except TypeError as error:
        return str(error)
    except AttributeError as error:
        return f"mlx-vlm's {known.rsplit('.', 1)[-1]!r} has changed: {error}"
    return next(filter(None, map(why_no_matrix, modules)), None)


def put_on(model: nn.Module, threads: int, *, activations: CpuActivations) -> nn.Module:
    """The model with its layers on the kernels, if `why_not` has no objection. Raises `ValueError` for damaged weights,
    and `OtherAnswer` if a layer computes something else than mlx-vlm's; the model has lost its layers then."""
    if type(model).__module__ == MODERNBERT:
        found = _modernbert(model, threads)
        model.layers = [found]
        model._masks = _whole_mask
    else:
        found = model.encoder = _bert(model, threads)
    # After the comparison, which needs the exactness of float32.
    found.round_activations(activations)
    return model


class KernelEncoder(nn.Module):  # type: ignore[misc] # mlx has no types
    """Called like mlx-vlm's encoders, on states [batch, length, hidden] and a mask: [batch, length], or [batch, 1, 1,
    length] as it is added to scores. Padding is on the right; its states become 0."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self._encoder = encoder
        self.instruction_set = encoder.kernels.instruction_set
        self.weight_bytes = encoder.nbytes

    def round_activations(self, activations: CpuActivations) -> None:
        """Round vectors that are multiplied with packed weights from now on."""
        round_activations(self._encoder.kernels, activations)

    @property
    def layer(self) -> list[None]:
        """An entry for each layer."""
        return [None] * len(self._encoder.layers)

    def __call__(self, states: mx.array, mask: mx.array, other_mask: mx.array | None = None) -> mx.array:
        given: NDArray[np.float32] = np.array(states.astype(mx.float32))
        seen: NDArray[np.float32] = np.array(mask.astype(mx.float32))
        lengths = (seen > 0 if seen.ndim == 2 else seen[:, 0, 0] == 0).sum(-1)
        tokens = np.arange(given.shape[1]) < lengths[:, None]
        packed = given[tokens]
        self._encoder.run(packed, lengths.tolist())
        given[tokens] = packed
        given[~tokens] = 0
        return mx.array(given)


def _whole_mask(mask: mx.array, _: mx.Dtype) -> tuple[mx.array, None]:
    """Replaces the two masks [batch, 1, length, length] that ModernBERT's layers are given: the kernels know which
    layer has a window."""
    return mask, None


@dataclass
class _Samples:
    """The outputs of mlx-vlm's first layer of each sort."""

    known: set[tuple[object, ...]] = field(default_factory=set)
    taken: list[tuple[int, NDArray[np.float32], NDArray[np.float32]]] = field(default_factory=list)

    def take(self, index: int, layer: Any, sort: tuple[object, ...], hidden: int, masks: Any) -> None:
        """`masks` returns the layer's arguments after its states, for a number of tokens. Widens the layer, whose
        weights have been read."""
        if sort in self.known:
            return
        self.known.add(sort)
        window = next((part for part in sort if type(part) is int), 0)
        count = min(window + SAMPLED_TOKENS, MOST_SAMPLED)
        dequantize_model(layer)
        layer.set_dtype(mx.float32)
        states = mx.random.normal((1, count, hidden), key=mx.random.key(index))
        self.taken.append((index, floats(states)[0], floats(layer(states, *masks(count)))[0]))

    def compare(self, encoder: Encoder) -> None:
        """Raises `OtherAnswer` if the encoder differs from the samples."""
        for index, states, expected in self.taken:
            found = states.copy()
            encoder.run(found, [len(states)], index)
            require_agreement(f"layer {index}", "mlx-vlm", found, expected)


def _taken(layers: list[Any]) -> Iterator[tuple[int, Any]]:
    """Each layer, which is removed from the model when the next is asked for: few weights are in memory twice."""
    for index, layer in enumerate(layers):
        yield index, layer
        layers[index] = nn.Identity()


def _projections(layer: Any) -> dict[str, nn.Module]:
    attention = layer.attention
    return {
        "query": attention.self.query,
        "key": attention.self.key,
        "value": attention.self.value,
        "output": attention.output.dense,
        "up": layer.intermediate.dense,
        "down": layer.output.dense,
    }


def _bert(model: nn.Module, threads: int) -> KernelEncoder:
    samples, layers = _Samples(), []
    for index, layer in _taken(model.encoder.layer):
        norms = {"attention_norm": layer.attention.output.LayerNorm, "mlp_norm": layer.output.LayerNorm}
        layers.append(
            EncoderLayer(
                **{name: matrix_of(module) for name, module in _projections(layer).items()},
                **{name: floats(norm.weight) for name, norm in norms.items()},
                **{f"{name}_bias": floats(norm.bias) for name, norm in norms.items()},
            )
        )
        samples.take(index, layer, (), layers[0].query.columns, lambda count: (mx.zeros((1, 1, 1, count)),))
    heads, eps = model.config.num_attention_heads, model.config.layer_norm_eps
    encoder = Encoder(Kernels(threads), tuple(layers), heads=heads, norm_eps=float(eps))
    samples.compare(encoder)
    return KernelEncoder(encoder)


def _modernbert(model: nn.Module, threads: int) -> KernelEncoder:
    config = model.config
    samples, layers, ropes = _Samples(), [], Ropes()
    for index, layer in _taken(model.layers):
        window = model.local_attention // 2 if layer.attn.local else 0
        place = ropes.place_of(rope_of(layer.attn.rotary_emb))
        layers.append(_modernbert_layer(layer, place, window))
        samples.take(
            index,
            layer,
            (layer.attn.local, window, "norm" if "weight" in layer.attn_norm else "", place),
            config.hidden_size,
            lambda count: model._masks(mx.ones((1, count)), mx.float32),
        )
    encoder = Encoder(
        Kernels(threads),
        tuple(layers),
        heads=config.num_attention_heads,
        norm_eps=float(config.norm_eps),
        norms_first=True,
        ropes=tuple(ropes.found),
    )
    samples.compare(encoder)
    return KernelEncoder(encoder)


def _modernbert_layer(layer: Any, rope: int | None, window: int) -> EncoderLayer:
    attention, network = layer.attn, layer.mlp
    size, inner = attention.all_head_size, sizes(network.Wi)[1] // 2
    return EncoderLayer(
        query=matrix_of(attention.Wqkv, 0, size),
        key=matrix_of(attention.Wqkv, size, 2 * size),
        value=matrix_of(attention.Wqkv, 2 * size, 3 * size),
        output=matrix_of(attention.Wo),
        gate=matrix_of(network.Wi, 0, inner),
        up=matrix_of(network.Wi, inner, 2 * inner),
        down=matrix_of(network.Wo),
        attention_norm=_of_norm(layer.attn_norm, "weight"),
        attention_norm_bias=_of_norm(layer.attn_norm, "bias"),
        mlp_norm=_of_norm(layer.mlp_norm, "weight"),
        mlp_norm_bias=_of_norm(layer.mlp_norm, "bias"),
        rope=rope,
        window=window,
    )


def _of_norm(norm: nn.Module, name: str) -> NDArray[np.float32] | None:
    """None if the norm is left out, or has no bias."""
    return floats(norm[name]) if name in norm else None
