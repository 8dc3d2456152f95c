"""Families whose models in mlx-vlm answer otherwise than they were trained to, or can't be batched: what is mended.

Each file is for one, and has a function that mends a model which mlx-vlm has loaded. Begin with `gemma3n.py`.
"""

import importlib
from typing import Any, Final

import mlx.nn as nn

MENDED: Final = (
    "deepseek_v4",
    "ernie4_5_moe_vl",
    "gemma3n",
    "glm5_next",
    "hy_v4",
    "inkling",
    "llama4",
    "qwen4_exp",
)


def mend(model: nn.Module, family: str | None) -> None:
    """Mend a model of mlx-vlm's package of this name, if there is anything to mend."""
    if family in MENDED:
        # What a file imports of mlx-vlm is that family alone.
        module: Any = importlib.import_module(f"{__name__}.{family}")
        module.mend(model)
