"""OLMo Hybrid as transformers saves it, with other names of its layers' norms, and the convolution of queries, keys and
values in three parts of one size whatever theirs are: mlx-lm 0.32 does not read either."""

import mlx.core as mx
from mlx_lm.models.olmo_hybrid import LinearAttentionDecoderLayer, Model

from pippin.engines.language.upstream.mends import Arrays, Mend, renamed, storing

NORMS = {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"}


def as_mlx_lm_reads(model: Model, arrays: Arrays) -> Arrays:
    found = renamed(arrays, NORMS)
    for place, layer in enumerate(model.layers):
        parts = [f"model.layers.{place}.linear_attn.{each}_conv1d.weight" for each in "qkv"]
        if isinstance(layer, LinearAttentionDecoderLayer) and {*parts} <= found.keys():
            joined, size = mx.concatenate([found[part] for part in parts]), layer.linear_attn.key_dim
            found |= zip(parts, mx.split(joined, [size, 2 * size]), strict=True)
    return found


MENDS = (
    Mend(
        original=Model,
        why="norms and convolutions as transformers saves them are not read",
        made=storing(as_mlx_lm_reads),
    ),
)
