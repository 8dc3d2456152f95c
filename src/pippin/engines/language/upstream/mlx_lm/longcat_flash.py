"""LongCat Flash as transformers saves it, with weights of the experts that hand on what they get, which mlx-lm 0.32
does not read; and its small number of the norms of compressed queries and keys, which is one of its own."""

import re

from mlx_lm.models.longcat_flash import LongcatFlashMLA, Model

from pippin.engines.language.upstream.mends import Arrays, Mend, storing
from pippin.engines.language.upstream.mlx_lm import glm4_moe_lite

EXPERT = re.compile(r"\.experts\.(\d+)\.")


def without_zero_experts(model: Model, arrays: Arrays) -> Arrays:
    numbers = {name: EXPERT.search(name) for name in arrays}
    count = model.args.n_routed_experts
    return {name: arrays[name] for name, found in numbers.items() if not found or int(found[1]) < count}


MENDS = (
    Mend(
        original=Model,
        why="weights of experts that hand on what they get are not read",
        made=storing(without_zero_experts),
    ),
    Mend(original=LongcatFlashMLA, why=glm4_moe_lite.WHY, made=glm4_moe_lite.own_epsilon),
)
