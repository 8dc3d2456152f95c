"""Falcon H1's factor of keys, which mlx-lm 0.32 looks for under another name than its weights have, and leaves out of
its conversions; and its norm of groups, which it takes over all of them."""

from collections.abc import Mapping
from typing import Any

from mlx_lm.models.falcon_h1 import FalconH1Attention, FalconH1Mixer

from pippin.engines.language.upstream.grouped import WHY, by_groups
from pippin.engines.language.upstream.mends import Mend


def scale_keys(attention: FalconH1Attention, config: Mapping[str, Any]) -> None:
    """Scores are as many times larger as their keys. Raises `ValueError` for a factor that values have as well."""
    if (factor := config.get("attention_in_multiplier", 1.0)) != 1.0:
        raise ValueError(
            f"attention_in_multiplier {factor} is not read by the class of this architecture for values"
        )
    attention.scale *= config.get("key_multiplier", 1.0)


MENDS = (
    Mend(original=FalconH1Attention, why="`key_multiplier` is not applied", made=scale_keys),
    Mend(original=FalconH1Mixer, why=WHY, made=by_groups),
)
