"""Mistral Small 4's attention, which mlx-vlm 0.7.10 does not sharpen by YaRN's `mscale_all_dim`; and its small number
of the norms of compressed queries and keys, which is one of its own."""

from mlx_lm.models.rope_utils import apply_yarn_mscale
from mlx_vlm.models.mistral4.language import Mistral4Attention

from pippin.engines.language.upstream.mends import Mend
from pippin.engines.language.upstream.mlx_lm.glm4_moe_lite import own_epsilon


def complete(attention: Mistral4Attention) -> None:
    own_epsilon(attention, None)
    attention.scale = apply_yarn_mscale(attention.qk_head_dim**-0.5, attention.config.rope_parameters)


MENDS = (Mend(original=Mistral4Attention, why="`mscale_all_dim` is not read", loaded=complete),)
