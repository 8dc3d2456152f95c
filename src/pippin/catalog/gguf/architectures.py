"""The GGUF architectures that Pippin knows: MLX's names for their tensors, and their config.json."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pippin.catalog.gguf.reader import COUNT, Metadata

Config = dict[str, Any]

OUTSIDE: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEAD_NORMS: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA_NORMS: Final = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
TENSOR_NAME: Final = re.compile(r"(?:blk\.(\d{1,4})\.)?([a-z_]+)\.(weight|bias)")
ROPE_FACTORS: Final = "rope_freqs.weight"
"""The tensor in which llama.cpp's converter stores the divisor of each frequency in Llama 3's rope scaling."""
LOW_FACTOR, HIGH_FACTOR, ORIGINAL_CONTEXT = 1.0, 4.0, 8192  # in every Llama 3.1, 3.2 and 3.3
FACTOR_TOLERANCE: Final = 1e-4


UNREAD: Final = dict.fromkeys(
    (
        "attention.clamp_kqv attention.scale attention.sliding_window attention.temperature_scale "
        "attn_logit_softcapping final_logit_softcapping rope.scaling.alpha rope.scaling.yarn_log_multiplier"
    ).split(),
    0.0,
) | dict.fromkeys("embedding_scale logit_scale residual_scale rope.scaling.yarn_ext_factor".split(), 1.0)
"""Keys that llama.cpp computes with and that change nothing where they are 0 or this."""


class Architecture(Struct, frozen=True):
    model_type: str  # config.json's
    block: Mapping[str, str]
    own: Callable[[Metadata, Config], Config]  # what its config.json has beside that of all; checks the rest
    biases: frozenset[str] = frozenset()  # modules that may have one

    def config(self, metadata: Metadata) -> Config:
        common = _common(metadata)
        # The class of transformers.
        written_by = f"{self.model_type.removesuffix('_text').capitalize()}ForCausalLM"
        named = {"model_type": self.model_type, "architectures": [written_by]}
        return named | self.own(metadata, common) | common

    def target(self, name: str, layers: int) -> tuple[str, Literal["weight", "bias"]] | None:
        """MLX's module for a GGUF tensor, and which of its arrays the tensor is; None if there is no such module."""
        found = TENSOR_NAME.fullmatch(name)
        if found is None:
            return None
        number, part, leaf = found.groups()
        module = OUTSIDE.get(part) if number is None else self.block.get(part)
        if module is None or (leaf == "bias" and part not in self.biases):
            return None
        if number is not None:
            if int(number) >= layers:
                return None
            module = f"model.layers.{int(number)}.{module}"
        return module, "weight" if leaf == "weight" else "bias"

    def modules(self, config: Config) -> set[str]:
        """The modules that must have a weight."""
        layers = range(config["num_hidden_layers"])
        named = {f"model.layers.{layer}.{module}" for layer in layers for module in self.block.values()}
        return named | {"model.embed_tokens", "model.norm"}


def _common(metadata: Metadata) -> Config:
    heads = metadata.get("{arch}.attention.head_count", COUNT)
    hidden = metadata.get("{arch}.embedding_length", COUNT)
    config: Config = {
        "hidden_size": hidden,
        "num_hidden_layers": metadata.get("{arch}.block_count", COUNT),
        "intermediate_size": metadata.get("{arch}.feed_forward_length", COUNT),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.find("{arch}.attention.head_count_kv", COUNT) or heads,
        "head_dim": metadata.find("{arch}.attention.key_length", COUNT) or hidden // heads,
        "max_position_embeddings": metadata.get("{arch}.context_length", COUNT),
        "rms_norm_eps": metadata.get("{arch}.attention.layer_norm_rms_epsilon", float),
        "rope_theta": metadata.find("{arch}.rope.freq_base", float) or 10000.0,
    }
    if scaling := _rope_scaling(metadata, config):
        config["rope_scaling"] = scaling
    _check(metadata, config)
    return config


def _check(metadata: Metadata, config: Config) -> None:
    if (metadata.find("split.count", COUNT) or 1) > 1:
        raise metadata.unsupported("it is one part of several; join them with llama.cpp's gguf-split first")
    if metadata.find("{arch}.expert_count", COUNT):
        raise metadata.unsupported("mixtures of experts are not among the architectures that can be imported")
    value_length = metadata.find("{arch}.attention.value_length", COUNT)
    if value_length is not None and value_length != config["head_dim"]:
        raise metadata.unsupported("its keys and values are of different lengths")
    rotated = metadata.find("{arch}.rope.dimension_count", COUNT)
    if rotated is not None and rotated != config["head_dim"]:
        raise metadata.unsupported("only a part of each head is rotated")
    if metadata.find("{arch}.attention.causal", bool) is False:
        raise metadata.unsupported("its tokens see those behind them (attention.causal)")
    for key, neutral in UNREAD.items():
        reads = metadata.architecture == "gemma3" and key == "attention.sliding_window"
        if not reads and (value := metadata.find(f"{{arch}}.{key}", float)) not in (None, 0.0, neutral):
            raise metadata.unsupported(f"its {key} of {value} is not read")
    if config["num_attention_heads"] % config["num_key_value_heads"] or config["head_dim"] % 2:
        raise metadata.unsupported("its numbers of heads do not fit together")
    if config["num_hidden_layers"] > 1024:
        raise metadata.unsupported(f"it claims to have {config['num_hidden_layers']} layers")


def _rope_scaling(metadata: Metadata, config: Config) -> Config | None:
    method = metadata.find("{arch}.rope.scaling.type", str)
    # Older files have no key for the type; this key implies linear.
    factor = metadata.find("{arch}.rope.scaling.factor", float) or metadata.find(
        "{arch}.rope.scale_linear", float
    )
    if method in (None, "linear") and factor not in (None, 0.0, 1.0):
        return {"rope_type": "linear", "factor": factor}
    if method == "yarn" and factor is not None:
        original = metadata.find("{arch}.rope.scaling.original_context_length", COUNT)
        names = ("beta_fast", "beta_slow")
        found = {name: metadata.find(f"{{arch}}.rope.scaling.yarn_{name}", float) for name in names}
        # llama.cpp multiplies the usual factor by this.
        if grown := metadata.find("{arch}.rope.scaling.attn_factor", float):
            found["attention_factor"] = grown * (0.1 * math.log(factor) + 1)
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original or round(config["max_position_embeddings"] / factor),
            **{name: value for name, value in found.items() if value is not None},
        }
    if method in (None, "none", "linear"):
        return None
    raise metadata.unsupported(f"its rotary positions are scaled by the unknown method {method!r}")


def _qwen2(metadata: Metadata, config: Config) -> Config:
    if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        raise metadata.unsupported("its numbers of heads do not fit together")
    return {"hidden_act": "silu"}


def _gemma3(metadata: Metadata, config: Config) -> Config:
    # The file lacks the attention divisor; it equals the head length in all models but the 27B.
    head = config["hidden_size"] // config["num_attention_heads"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": head if config["num_hidden_layers"] == 62 else config["head_dim"],
        "sliding_window": metadata.get("gemma3.attention.sliding_window", COUNT),
        "sliding_window_pattern": metadata.find("gemma3.attention.sliding_window_pattern", COUNT) or 6,
        "rope_local_base_freq": metadata.find("gemma3.rope.freq_base_swa", float) or 10000.0,
    }


ARCHITECTURES: Final = {
    "llama": Architecture(
        "llama",
        BLOCK,
        lambda *_: {"hidden_act": "silu"},
        frozenset({"attn_q", "attn_k", "attn_v", "attn_output"}),
    ),
    "qwen2": Architecture("qwen2", BLOCK, _qwen2, frozenset({"attn_q", "attn_k", "attn_v"})),
    "qwen3": Architecture(
        "qwen3", BLOCK | HEAD_NORMS, lambda *_: {"hidden_act": "silu", "attention_bias": False}
    ),
    "gemma3": Architecture("gemma3_text", BLOCK | HEAD_NORMS | GEMMA_NORMS, _gemma3),
}


def architecture(metadata: Metadata) -> Architecture:
    name = metadata.architecture
    known = ARCHITECTURES.get(name)
    if known is None:
        known_names = ", ".join(ARCHITECTURES)
        raise metadata.unsupported(
            f"its architecture is {name[:60]!r}, and only {known_names} can be imported from GGUF. Look for the model "
            "as safetensors, which Pippin serves as they are"
        )
    return known


def llama3_scaling(factors: NDArray[np.float32], theta: float) -> dict[str, Any] | None:
    """`rope_scaling` for config.json; None if the factors do not follow Llama 3's formula.

    llama.cpp's converter writes the factor of each frequency, [head_dim / 2], and drops the parameters that they were
    computed from; MLX needs the parameters.
    """
    factor = float(f"{float(factors.max()):.6g}")
    if not math.isfinite(factor) or factor < 1:
        return None
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW_FACTOR,
        "high_freq_factor": HIGH_FACTOR,
        "original_max_position_embeddings": ORIGINAL_CONTEXT,
    }
    expected = llama3_factors(2 * factors.size, theta, factor)
    return scaling if np.allclose(factors, expected, rtol=FACTOR_TOLERANCE) else None


def llama3_factors(dimensions: int, theta: float, factor: float) -> NDArray[np.float64]:
    """The divisor of each frequency, [dimensions / 2].

    Formula: transformers, modeling_rope_utils.py, `_compute_llama3_parameters`.
    """
    frequencies = theta ** -(np.arange(0, dimensions, 2) / dimensions)
    wavelengths = 2 * math.pi / frequencies
    smooth = (ORIGINAL_CONTEXT / wavelengths - LOW_FACTOR) / (HIGH_FACTOR - LOW_FACTOR)
    between = 1 / ((1 - smooth) / factor + smooth)
    long, short = wavelengths > ORIGINAL_CONTEXT / LOW_FACTOR, wavelengths < ORIGINAL_CONTEXT / HIGH_FACTOR
    return np.where(short, 1.0, np.where(long, factor, between))
