"""Which of mlx-lm's models the kernels' decoder can run, and how each differs from llama.

An architecture is recognised by the class of its model. A model that is not listed here, or that has a layer of another
class than the architecture's own, runs as in mlx-lm, with the kernels' products where they fit (`operations.py`).
"""

import sys
from collections.abc import Callable, Iterator
from math import log
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from msgspec import Struct, field
from pippin_kernels import Rope

from pippin.engines.language.kernels.matrices import floats, sizes, why_no_matrix

LARGEST_HEAD = 512

Activation = Literal["silu", "gelu_tanh", "gelu", "swiglu_oai"]


class Mixture(Struct, frozen=True, kw_only=True):
    """Attribute names in a layer's network that is a mixture of experts."""

    router: str
    experts: str
    chosen: str  # the number of experts that a token goes through


class Architecture(Struct, frozen=True, kw_only=True):
    """How a decoder differs from llama's. Names are attributes of mlx-lm's modules."""

    module: str  # in mlx_lm.models
    activation: Activation = "silu"
    norms_less_one: bool = False  # norms are stored less one
    norms_outputs: bool = False  # attention's and the feed-forward network's outputs are normed too
    fused: bool = False  # query, key and value in one projection, gate and up in another
    heads: str = "n_heads"
    kv_heads: str = "n_kv_heads"
    scale: str = "scale"
    network: str = "mlp"
    mixture: Mixture | None = None  # in layers whose network has experts
    attention_softcap: bool = False
    embedding_scale: Callable[[Any], float] = field(default=lambda args: 1.0)
    residual_scale: Callable[[Any], float] = field(default=lambda args: 1.0)
    # What is done with the head's product.
    logits: Callable[[Any, mx.array], mx.array] | None = None


def _capped(args: Any, logits: mx.array) -> mx.array:
    cap = args.final_logit_softcapping
    capped: mx.array = mx.tanh(logits / cap) * cap
    return capped


def _root_of_width(args: Any) -> float:
    return float(args.hidden_size**0.5)


def _rounded_root_of_width(args: Any) -> float:
    kind = mx.float32 if getattr(args, "exact_scale", False) else mx.bfloat16
    return float(mx.array(args.hidden_size**0.5, kind).astype(mx.float32))


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
    Architecture(module="gemma", activation="gelu_tanh", norms_less_one=True, embedding_scale=_root_of_width),
    Architecture(
        module="gemma2",
        activation="gelu_tanh",
        norms_less_one=True,
        norms_outputs=True,
        attention_softcap=True,
        embedding_scale=_root_of_width,
        logits=_capped,
    ),
    Architecture(
        module="gemma3_text",
        activation="gelu_tanh",
        norms_less_one=True,
        norms_outputs=True,
        embedding_scale=_rounded_root_of_width,
    ),
    Architecture(
        module="qwen3_moe",
        mixture=Mixture(
            router="gate",
            experts="switch_mlp",
            chosen="top_k",
        ),
    ),
    Architecture(
        module="mixtral",
        heads="num_heads",
        kv_heads="num_key_value_heads",
        network="block_sparse_moe",
        mixture=Mixture(router="gate", experts="switch_mlp", chosen="num_experts_per_tok"),
    ),
    Architecture(
        module="gpt_oss",
        activation="swiglu_oai",
        heads="num_attention_heads",
        kv_heads="num_key_value_heads",
        scale="sm_scale",
        mixture=Mixture(router="router", experts="experts", chosen="num_experts_per_tok"),
    ),
)

WRAPPERS = {"mlx_lm.models.gemma3": "language_model", "mlx_lm.models.mistral3": "language_model"}
"""The attribute that holds the decoder in models that only call one for text."""


def decoder_of(model: nn.Module) -> tuple[str, nn.Module]:
    """The decoder in a model that only wraps one, and the path to it, which ends in a dot; or the model and no path."""
    name = WRAPPERS.get(type(model).__module__)
    return ("", model) if name is None else (f"{name}.", model[name])


def architecture_of(model: nn.Module) -> Architecture | None:
    name = type(model).__module__
    found = next((each for each in ARCHITECTURES if name == f"mlx_lm.models.{each.module}"), None)
    return found if found is not None and type(model) is sys.modules[name].Model else None


def why_not(model: nn.Module) -> str | None:
    """Why the decoder cannot run this model, or None. Looks at no weight."""
    _, model = decoder_of(model)
    architecture = architecture_of(model)
    if architecture is None:
        name = getattr(model, "model_type", type(model).__name__)
        return f"the architecture {name!r} is not one that the kernels know"
    try:
        windows_of(model)
        for layer in model.model.layers:
            attention = layer.self_attn
            if (
                getattr(attention, architecture.scale) <= 0
                or head_dim(architecture, attention) > LARGEST_HEAD
            ):
                return "its heads are of a size that the kernels do not know"
            rope_of(attention.rope)
        for module in _matrices(architecture, model):
            if (reason := why_no_matrix(module)) is not None:
                return reason
    except TypeError as error:
        return str(error)
    except (AttributeError, KeyError) as error:
        return f"mlx-lm's {architecture.module!r} has changed: it has no {error}"
    return None


def windows_of(model: nn.Module) -> list[int]:
    """Tokens that each layer attends to, 0 for all. Raises `TypeError` for any other kind of cache."""
    found = []
    for cache in make_prompt_cache(model):
        if type(cache) is KVCache:
            found.append(0)
        elif type(cache) is RotatingKVCache and cache.keep == 0:
            found.append(cache.max_size)
        else:
            raise TypeError(f"its layers have caches of the class {type(cache).__name__}")
    return found


def is_mixture(architecture: Architecture, layer: Any) -> bool:
    return architecture.mixture is not None and architecture.mixture.experts in layer[architecture.network]


def _matrices(architecture: Architecture, model: Any) -> Iterator[nn.Module]:
    """All layers with matrices that vectors are multiplied with."""
    for layer in model.model.layers:
        attention, network = layer.self_attn, layer[architecture.network]
        if architecture.fused:
            yield from (attention.qkv_proj, attention.o_proj, network.gate_up_proj, network.down_proj)
            continue
        yield from (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        mixture = architecture.mixture
        if mixture is not None and mixture.experts in network:
            yield network[mixture.router]
            network = network[mixture.experts]
        yield from (network.gate_proj, network.up_proj, network.down_proj)
    yield from (model.model.embed_tokens, *heads_of(model))


def heads_of(model: nn.Module) -> Iterator[nn.Module]:
    """The projection onto the vocabulary, if it is not the embedding's."""
    if "lm_head" in model:
        yield model.lm_head


def rope_of(rope: Any) -> Rope | None:
    """The kernels' rotary positions. Raises `TypeError` for an unknown kind."""
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


def head_dim(architecture: Architecture, attention: Any) -> int:
    """The size of each head, by the width of the output projection's input."""
    return sizes(attention.o_proj)[0] // int(getattr(attention, architecture.heads))
