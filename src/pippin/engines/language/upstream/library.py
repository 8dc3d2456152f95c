"""What is used of mlx-lm beside its models. Its `utils` import transformers and the Hub's client, which take seconds,
for functions that read tokenizers and fetch files: these import them here when they are called."""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """Stands for a module in the imports of another; what it has imports the module when it is called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **named: getattr(importlib.import_module(self.__name__), name)(*given, **named)


def _import_utils() -> Any:
    later = {each: _Later(each) for each in ("mlx_lm.tokenizer_utils", "huggingface_hub")}
    later = {name: module for name, module in later.items() if name not in sys.modules}
    sys.modules.update(later)
    try:
        return importlib.import_module("mlx_lm.utils")
    finally:
        for name in later:
            del sys.modules[name]


_utils = _import_utils()

OTHER_TYPES = {"hunyuan_v1_moe": "hunyuan", "youtu": "youtu_llm"}
"""Types by transformers' names, where mlx-lm has older ones."""

MODEL_REMAPPING: dict[str, str] = {**_utils.MODEL_REMAPPING, **OTHER_TYPES}
dequantize_model = _utils.dequantize_model
infer_quant_config = _utils.infer_quant_config
load_model = _utils.load_model

OTHER_NAMES = {"BailingHybridForCausalLM": "BailingMoeV3ForCausalLM"}
"""Architectures by transformers' names, where mlx-lm tells them by those in the files that were published first."""


def get_classes(config: dict[str, Any]) -> tuple[Any, Any]:
    """The classes of a configuration's model and of its arguments. Raises `ValueError` for an unknown architecture."""
    given = config.get("architectures") or ()
    names = [OTHER_NAMES.get(each, each) for each in ((given,) if isinstance(given, str) else given)]
    kind = str(config.get("model_type"))
    named = {"architectures": names, "model_type": OTHER_TYPES.get(kind, kind)}
    found: tuple[Any, Any] = _utils._get_classes({**config, **named})
    return found
