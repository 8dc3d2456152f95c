"""Factors of YaRN and LongRoPE that mlx-lm 0.32 does not read, and YaRN's frequencies between whole numbers of
dimensions (`truncate: false`, as GPT-OSS has them). Formulas: transformers' `_compute_yarn_parameters` and
`_compute_longrope_parameters`."""

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.rope_utils import SuScaledRoPE, YarnRoPE

from pippin.engines.language.upstream.mends import SERVED, Mend
from pippin.engines.language.upstream.rotary import complete_yarn


def scale_long(rope: SuScaledRoPE, config: Mapping[str, Any]) -> None:
    """Have a module scale by what the configuration, spelled out, says, and not by the ratio of its windows alone."""
    scaling = config.get("rope_scaling") or {}
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if scaling.get("attention_factor") is not None:
        rope._scale = float(scaling["attention_factor"])
    elif factor is not None and original is not None:
        rope._scale = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
    # Keys in a cache cannot be turned again, so that the window decides for all lengths, as in vLLM and llama.cpp.
    if original is not None and config.get(SERVED, math.inf) <= original:
        rope._freqs = rope._freqs * mx.array(scaling["short_factor"]) / mx.array(scaling["long_factor"])


YARN = "`truncate` and `attention_factor` are not read, and one of `mscale` and `mscale_all_dim` alone is"

MENDS = (
    Mend(original=SuScaledRoPE, why="`factor` and `attention_factor` are not read", made=scale_long),
    Mend(original=YarnRoPE, why=YARN, made=complete_yarn),
)
