"""Architectures whose models in mlx-lm can't be batched, or can't take tokens back: what is mended.

Each file is for one, has its name in mlx-lm, and a function that mends a model which mlx-lm has loaded.
Begin with `gemma2.py`.
"""

import importlib
from typing import Any, Final

import mlx.nn as nn

MENDED: Final = ("afm7", "baichuan_m1", "gemma2", "gpt_bigcode", "llama4", "longcat_flash_ngram")


def mend(model: nn.Module) -> None:
    """Mend a model of mlx-lm, if there is anything to mend. Its weights stay where they are."""
    package, _, architecture = type(model).__module__.rpartition(".")
    if package == "mlx_lm.models" and architecture in MENDED:
        # What a file imports of mlx-lm is that architecture alone.
        module: Any = importlib.import_module(f"{__name__}.{architecture}")
        module.mend(model)
