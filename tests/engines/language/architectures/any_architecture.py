"""Tiny random checkpoints of any architecture of mlx-lm, made from its own `ModelArgs`.

Every size is brought down by its name, and what an architecture needs beyond that is in `settings.SETTINGS`.
"""

import ast
import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
from mlx.utils import tree_flatten, tree_unflatten

from pippin.engines.language.upstream.mends import classes_of
from tests.as_on_a_mac.mac import chosen_mac
from tests.engines.language.architectures.settings import COMMON, SETTINGS
from tests.engines.language.vision.any_family import LARGEST, fields_of, merged
from tests.engines.tiny_models import write_byte_tokenizer

Json = dict[str, Any]


def architectures() -> list[str]:
    """The names of the modules of the installed mlx-lm that have a `Model` and `ModelArgs`."""
    found = []
    for entry in pkgutil.iter_modules(mlx_lm.models.__path__):
        source = Path(mlx_lm.models.__path__[0], f"{entry.name}.py").read_text("utf-8")
        if {"Model", "ModelArgs"} <= _names(ast.parse(source)):
            found.append(entry.name)
    return found


def _names(module: ast.Module) -> set[str]:
    """Classes that a module defines, and what it imports."""
    found = set()
    for node in module.body:
        match node:
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.ImportFrom(names=names):
                found |= {each.asname or each.name for each in names}
    return found


def configuration(architecture: str) -> Json:
    """What config.json has, with small sizes."""
    kind = importlib.import_module(f"mlx_lm.models.{architecture}").ModelArgs
    common = {name: COMMON[name] for name in kind.__dataclass_fields__ if name in COMMON}
    config = merged({**fields_of(kind), **common}, SETTINGS.get(architecture, {}))
    inner = config.get("text_config")
    if isinstance(inner, dict) and "of" in inner:
        others = {name: value for name, value in inner.items() if name != "of"}
        config["text_config"] = merged(configuration(inner["of"]), others)
    return {**config, "model_type": architecture}


def write(architecture: str, folder: Path, *, seed: int = 7) -> Path:
    """Write a random checkpoint of this architecture into `folder`: float32, or as the Mac has it that the tests run
    on."""
    folder.mkdir(parents=True, exist_ok=True)
    config = configuration(architecture)
    # As the folder will be read: what the configuration leaves out is what transformers takes for granted.
    model_class, arguments = classes_of(config)
    mx.random.seed(seed)
    model = model_class(arguments.from_dict(json.loads(json.dumps(config))))
    size = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    assert size < LARGEST, f"{size / 1e6:.0f} MB: a size in the configuration is not small"
    spread = [(name, _spread(array)) for name, array in tree_flatten(model.parameters())]
    model.update(tree_unflatten(spread))
    mac = chosen_mac()
    config = config if mac is None else mac.stored(model, config)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder)
    return folder


def _spread(array: mx.array) -> mx.array:
    """Wide enough that the random model answers differently to different contexts; packed weights as they are."""
    if not mx.issubdtype(array.dtype, mx.floating):
        return array
    moved = array if array.ndim < 2 else array + 0.08 * mx.random.normal(array.shape)
    return moved.astype(mx.float32)
