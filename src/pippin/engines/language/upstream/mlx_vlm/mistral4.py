"""Mistral Small 4's attention, which mlx-vlm 0.7.10 does not sharpen by YaRN's `mscale_all_dim`; and its small number
of the norms of compressed queries and keys, which is one of its own."""

from mlx_lm.models.rope_utils import apply_yarn_mscale
from mlx_vlm.models.mistral4.language import Mistral4Attention

from pippin.engines.language.upstream.mends import Mend


def complete(attention: Mistral4Attention) -> None:
    """Give the scale its factor, and the norms their number."""
    attention.scale = apply_yarn_mscale(attention.qk_head_dim**-0.5, attention.config.rope_parameters)
    for name in ("q_a_layernorm", "kv_a_layernorm"):
        if name in attention:
            attention[name].eps = 1e-6


MENDS = (Mend(original=Mistral4Attention, why="`mscale_all_dim` is not read", loaded=complete),)
