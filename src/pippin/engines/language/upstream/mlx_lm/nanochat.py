"""NanoChat as transformers saves it: mlx-lm 0.32 reads the names of its first weights alone, and takes one small number
for its norms (`rms_norm_eps`)."""

from collections.abc import Mapping
from types import FunctionType
from typing import Any

import mlx.core as mx
from mlx_lm.models import nanochat
from mlx_lm.models.nanochat import Attention, Model, NanoChatModel, TransformerBlock

from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.mends import Mend, renaming

NAMES = {
    "model.embed_tokens.": "transformer.wte.",
    "model.layers.": "transformer.h.",
    ".self_attn.o_proj.": ".attn.c_proj.",
    **{f".self_attn.{each}_proj.": f".attn.c_{each}." for each in "qkv"},
    ".fc1.": ".c_fc.",
    ".fc2.": ".c_proj.",
}


def take_epsilon(module: Any, config: Mapping[str, Any]) -> None:
    """Have a module call another norm, which is a function of mlx-lm's module."""
    kind, epsilon = type(module), config.get("rms_norm_eps", 1e-6)
    named = {**vars(nanochat), "rms_norm": lambda x: mx.fast.rms_norm(x, None, epsilon)}
    become(module, type(kind.__name__, (kind,), {"__call__": FunctionType(kind.__call__.__code__, named)}))


MENDS = (
    renaming(Model, NAMES),
    *(
        Mend(original=kind, why="`rms_norm_eps` is not read", made=take_epsilon)
        for kind in (Attention, TransformerBlock, NanoChatModel)
    ),
)
