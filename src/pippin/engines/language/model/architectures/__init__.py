"""Architectures whose models in mlx-lm can't be read or batched, or can't take tokens back: what is mended.

Each file is for one, has its name in mlx-lm, and a function that mends a model which mlx-lm has loaded.
Begin with `gemma2.py`. What is mended before there is a model is here.
"""

import importlib
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import _get_classes

MENDED: Final = ("afm7", "baichuan_m1", "gemma2", "gpt_bigcode", "llama4", "longcat_flash_ngram")

REFUSES_HEADS: Final = ("bailing_moe", "bailing_moe_linear")
"""Architectures that mlx-lm 0.32 does not read with prediction heads behind the last layer: its other classes leave out
those."""


def mend(model: nn.Module) -> None:
    """Mend a model of mlx-lm, if there is anything to mend. Its weights stay where they are."""
    package, _, architecture = type(model).__module__.rpartition(".")
    if package == "mlx_lm.models" and architecture in MENDED:
        # What a file imports of mlx-lm is that architecture alone.
        module: Any = importlib.import_module(f"{__name__}.{architecture}")
        module.mend(model)


def classes_of(config: dict[str, Any]) -> tuple[Any, Any]:
    """What makes a model and its arguments by a configuration, for mlx-lm's `load_model`. Raises `ValueError`."""
    model_class, arguments = _get_classes(config)
    if config["model_type"] not in REFUSES_HEADS:
        return model_class, arguments
    return lambda made: _without_heads(model_class(made)), arguments


def _without_heads(model: nn.Module) -> nn.Module:
    """The model, which leaves out the weights of layers behind its last one when it is loaded."""
    sanitize, last = model.sanitize, len(model.layers)

    def leave_out(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        own: dict[str, mx.array] = {}
        for name, array in weights.items():
            number = name.removeprefix("model.layers.").partition(".")[0]
            if not number.isdigit() or int(number) < last:
                own[name] = array
        found: dict[str, mx.array] = sanitize(own)
        return found

    model.sanitize = leave_out
    return model
