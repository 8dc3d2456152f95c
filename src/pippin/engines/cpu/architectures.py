"""Which of mlx-lm's models the kernels' decoder can run, and what it is told of each: layers, norms, rotary positions.

An architecture is known by the class of its model: what is not listed here, or holds a layer of another class than the
architecture's own, runs as mlx-lm runs it.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import log
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray
from pippin_kernels import Layer, Matrix, Rope, Shape

from pippin.engines.cpu.matrices import floats, matrix_of, why_no_matrix

LARGEST_HEAD = 512
NORMED_OUTPUTS = {"mlp_norm": "pre_feedforward_layernorm", "mlp_out_norm": "post_feedforward_layernorm"}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What tells a decoder from llama's. Names are attributes of mlx-lm's modules."""

    module: str  # in mlx_lm.models
    activation: Literal["silu", "gelu_tanh", "gelu"] = "silu"
    norms_less_one: bool = False  # norms are stored less one
    norms_outputs: bool = False  # attention's and the feed-forward network's outputs are normed too
    fused: bool = False  # query, key and value in one projection, gate and up in another
    attention_softcap: bool = False
    embedding_scale: Callable[[Any], float] = field(default=lambda args: 1.0)
    residual_scale: Callable[[Any], float] = field(default=lambda args: 1.0)
    # What becomes of the head's product.
    logits: Callable[[Any, mx.array], mx.array] = field(default=lambda args, logits: logits)


def _capped(args: Any, logits: mx.array) -> mx.array:
    cap = args.final_logit_softcapping
    capped: mx.array = mx.tanh(logits / cap) * cap
    return capped


def _root_of_width(args: Any) -> float:
    return float(args.hidden_size**0.5)


ARCHITECTURES = (
    Architecture(module="llama"),
    Architecture(module="qwen2"),
    Architecture(module="qwen3"),
    Architecture(module="smollm3"),
    Architecture(module="phi3", fused=True),
    Architecture(
        module="granite",
        embedding_scale=lambda args: float(args.embedding_multiplier),
        residual_scale=lambda args: float(args.residual_multiplier),
        logits=lambda args, logits: logits / args.logits_scaling,
    ),
    Architecture(module="gemma", activation="gelu", norms_less_one=True, embedding_scale=_root_of_width),
    Architecture(
        module="gemma2",
        activation="gelu_tanh",
        norms_less_one=True,
        norms_outputs=True,
        attention_softcap=True,
        embedding_scale=_root_of_width,
        logits=_capped,
    ),
)


def architecture_of(model: nn.Module) -> Architecture | None:
    for known in ARCHITECTURES:
        if type(model).__module__ == f"mlx_lm.models.{known.module}":
            module = importlib.import_module(f"mlx_lm.models.{known.module}")
            return known if type(model) is module.Model else None
    return None


def why_not(model: nn.Module) -> str | None:
    """Why the decoder cannot run this model, or None. Looks at no weight."""
    architecture = architecture_of(model)
    if architecture is None:
        name = getattr(model, "model_type", type(model).__name__)
        return f"the architecture {name!r} is not one that the kernels know"
    layers = model.model.layers
    for layer in layers:
        if getattr(layer, "use_sliding", False):
            return "its layers attend to a sliding window"
        if layer.self_attn.scale <= 0 or _head_dim(layer.self_attn) > LARGEST_HEAD:
            return "its heads are of a size that the kernels do not know"
        if (reason := _why_no_rope(layer.self_attn.rope)) is not None:
            return reason
    modules = [module for layer in layers for module in _projections(architecture, layer)]
    for module in [*modules, model.model.embed_tokens, *_head_of(model)]:
        if (reason := why_no_matrix(module)) is not None:
            return reason
    return None


def _projections(architecture: Architecture, layer: Any) -> Iterator[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    if architecture.fused:
        yield from (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    else:
        yield from (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        yield from (mlp.gate_proj, mlp.up_proj, mlp.down_proj)


def _head_of(model: nn.Module) -> Iterator[nn.Module]:
    """The projection onto the vocabulary, where it is not the embedding's."""
    if "lm_head" in model:
        yield model.lm_head


def _why_no_rope(rope: Any) -> str | None:
    try:
        _rope(rope)
    except TypeError as error:
        return str(error)
    return None


def _rope(rope: Any) -> Rope | None:
    """Raises `TypeError` for a kind that is not known."""
    name = type(rope).__name__
    if name == "NoPE":
        return None
    if type(rope) is nn.RoPE:
        half = rope.dims // 2
        frequencies = mx.exp(mx.arange(half, dtype=mx.float32) * (-log(rope.base) / half))
        return Rope(
            inverse_frequencies=floats(frequencies),
            interleaved=bool(rope.traditional),
            scale=float(rope.scale),
        )
    stretches = {"Llama3RoPE": None, "YarnRoPE": "mscale", "SuScaledRoPE": "_scale"}
    if name not in stretches or not type(rope).__module__.startswith("mlx_lm.models."):
        raise TypeError(f"its rotary positions are of the class {name}")
    stretch = stretches[name]
    return Rope(
        inverse_frequencies=floats(1 / rope._freqs),
        interleaved=bool(getattr(rope, "traditional", False)),
        stretch=1.0 if stretch is None else float(getattr(rope, stretch)),
    )


def _head_dim(attention: Any) -> int:
    """Of each head, by the width of the output projection's input."""
    projection = attention.o_proj
    width = projection.weight.shape[1]
    if type(projection) is nn.QuantizedLinear:
        width = width * 32 // projection.bits
    return int(width // attention.n_heads)


def describe(model: nn.Module) -> tuple[Shape, Matrix | None]:
    """The decoder's shape, and the head's matrix where it is not the embedding's, with weights in the kernels' layout.
    `why_not` had no objection. Takes the model's weights out of it as it goes, so that they do not lie there twice.
    Raises `ValueError` for weights that are damaged."""
    architecture = architecture_of(model)
    assert architecture is not None
    args, inner = model.args, model.model
    attention = inner.layers[0].self_attn
    head_dim, activation = _head_dim(attention), architecture.activation
    ropes: list[Rope] = []
    layers = []
    for index, layer in enumerate(inner.layers):
        layers.append(_layer(architecture, layer, head_dim, ropes))
        inner.layers[index] = nn.Identity()
    heads = [matrix_of(head) for head in _head_of(model)]
    shape = Shape(
        embedding=matrix_of(inner.embed_tokens),
        final_norm=_norm(architecture, inner.norm),
        layers=tuple(layers),
        ropes=tuple(ropes),
        heads=attention.n_heads,
        kv_heads=attention.n_kv_heads,
        head_dim=head_dim,
        activation=activation,
        norm_eps=float(args.rms_norm_eps),
        attention_scale=float(attention.scale),
        attention_softcap=float(args.attn_logit_softcapping) if architecture.attention_softcap else 0.0,
        embedding_scale=architecture.embedding_scale(args),
        residual_scale=architecture.residual_scale(args),
    )
    return shape, heads[0] if heads else None


def _layer(architecture: Architecture, layer: Any, head_dim: int, ropes: list[Rope]) -> Layer:
    attention = layer.self_attn
    after = {"mlp_norm": "post_attention_layernorm"}
    if architecture.norms_outputs:
        after = {**NORMED_OUTPUTS, "attention_out_norm": "post_attention_layernorm"}
    inside = {"query_norm": "q_norm", "key_norm": "k_norm"}
    norms = {name: _norm(architecture, layer[mine]) for name, mine in after.items()}
    norms |= {
        name: _norm(architecture, attention[mine]) for name, mine in inside.items() if mine in attention
    }
    return Layer(
        **_matrices(architecture, layer, head_dim),
        input_norm=_norm(architecture, layer.input_layernorm),
        **norms,
        rope=_place(_rope(attention.rope), ropes),
    )


def _matrices(architecture: Architecture, layer: Any, head_dim: int) -> dict[str, Matrix]:
    attention, mlp = layer.self_attn, layer.mlp
    found = {"output": matrix_of(attention.o_proj), "down": matrix_of(mlp.down_proj)}
    if not architecture.fused:
        names = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
        found |= {name: matrix_of(attention[mine]) for name, mine in names.items()}
        return found | {"gate": matrix_of(mlp.gate_proj), "up": matrix_of(mlp.up_proj)}
    queries, keys = attention.n_heads * head_dim, attention.n_kv_heads * head_dim
    projection, both = attention.qkv_proj, mlp.gate_up_proj
    half = both.weight.shape[0] // 2
    return found | {
        "query": matrix_of(projection, 0, queries),
        "key": matrix_of(projection, queries, queries + keys),
        "value": matrix_of(projection, queries + keys, queries + 2 * keys),
        "gate": matrix_of(both, 0, half),
        "up": matrix_of(both, half, 2 * half),
    }


def _norm(architecture: Architecture, norm: Any) -> NDArray[np.float32]:
    weight = floats(norm.weight)
    return weight + np.float32(1) if architecture.norms_less_one else weight


def _place(rope: Rope | None, ropes: list[Rope]) -> int | None:
    """Where the decoder's list has this rope, which joins it if it is new."""
    if rope is None:
        return None
    for index, known in enumerate(ropes):
        alike = (known.interleaved, known.scale, known.stretch) == (
            rope.interleaved,
            rope.scale,
            rope.stretch,
        )
        if alike and np.array_equal(known.inverse_frequencies, rope.inverse_frequencies):
            return index
    ropes.append(rope)
    return len(ropes) - 1
