"""YaRN's frequencies between whole numbers of dimensions (`truncate: false`, as GPT-OSS has them), and its factor of
attention, which mlx-lm 0.32 does not read; nor does it read those of LongRoPE. Formulas: transformers'
`_compute_yarn_parameters` and `_compute_longrope_parameters`."""

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.rope_utils import SuScaledRoPE, YarnRoPE

from pippin.engines.language.configuration import rotary_tables, spelled_out
from pippin.engines.language.upstream.mends import SERVED, Mend


def complete(rope: YarnRoPE, config: Mapping[str, Any]) -> None:
    """Have a module turn by what the configuration says and its class leaves out."""
    part = _turned(config)
    base, scaling = part.get("rope_theta"), part.get("rope_scaling") or {}
    if scaling.get("attention_factor") is not None:
        rope.mscale = float(scaling["attention_factor"])
    if base is None or scaling.get("truncate", True):
        return
    original = scaling["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        """Which dimension turns so often within the length that the model was trained with first."""
        return float(rope.dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base)))

    low = max(dimension(scaling.get("beta_fast") or 32), 0)
    high = min(dimension(scaling.get("beta_slow") or 1), rope.dims - 1)
    slow = mx.clip((mx.arange(rope.dims // 2) - low) / max(high - low, 0.001), 0, 1)
    wavelengths = base ** (mx.arange(0, rope.dims, 2, dtype=mx.float32) / rope.dims)
    rope._freqs = 1 / (slow / (scaling["factor"] * wavelengths) + (1 - slow) / wavelengths)


def _turned(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a configuration that has rotary settings."""
    spelled = spelled_out(config)
    text = spelled.get("text_config") or {}
    return text if rotary_tables(text) else spelled


def scale_long(rope: SuScaledRoPE, config: Mapping[str, Any]) -> None:
    """Have a module scale by what the configuration says, and not by the ratio of its windows alone."""
    scaling = _turned(config).get("rope_scaling") or {}
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if scaling.get("attention_factor") is not None:
        rope._scale = float(scaling["attention_factor"])
    elif factor is not None and original is not None:
        rope._scale = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
    # Keys in a cache cannot be turned again, so that the window decides for all lengths, as in vLLM and llama.cpp.
    if original is not None and config.get(SERVED, math.inf) <= original:
        rope._freqs = rope._freqs * mx.array(scaling["short_factor"]) / mx.array(scaling["long_factor"])


MENDS = (
    Mend(original=SuScaledRoPE, why="`factor` and `attention_factor` are not read", made=scale_long),
    Mend(original=YarnRoPE, why="`truncate` and `attention_factor` are not read", made=complete),
)
