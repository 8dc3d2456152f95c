"""Llama 4's queries and keys, which mlx-vlm 0.7.10 norms by an epsilon of its own behind their turn; in transformers it
is that of the layer's other norms."""

import mlx.core as mx
from mlx_vlm.models.llama4.language import TransformerBlock

from pippin.engines.language.upstream.classes import Method, replace_method
from pippin.engines.language.upstream.mends import Mend


def _norm_turned(layer: TransformerBlock) -> None:
    attention, epsilon = layer.self_attn, layer.input_layernorm.eps

    def normed(turn: Method) -> Method:
        return lambda *given, **named: mx.fast.rms_norm(turn(*given, **named), None, epsilon)

    if attention.use_qk_norm:
        attention.use_qk_norm = False
        replace_method(attention.rope, "__call__", normed, mark="normed")


WHY = "the epsilon of the norm of queries and keys is not read"
MENDS = (Mend(original=TransformerBlock, why=WHY, loaded=_norm_turned),)
