"""How a CPU will compute the model in a folder, for `pippin show`. No weight is read.

    python -m pippin.engines.cpu_way FOLDER KIND

prints a `Way` as a line of JSON. KIND is a `ModelKind`.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import mlx.nn as nn
import msgspec

from pippin.config.repacked import is_repacked
from pippin.core.models import ModelKind
from pippin.core.published import object_in
from pippin.engines.file_limit import own_file_limit
from pippin.engines.language.kernels.ways import Way, way_of, way_of_encoder


def way_of_folder(folder: Path, kind: ModelKind) -> Way:
    """How a CPU will compute the model of a kind in a folder. Looks at no weight."""
    load, way = _loader(folder, kind)
    try:
        model = load()
    except Exception as error:  # whatever a model's class raises for its configuration
        return Way("float32", f"it is not loaded ({type(error).__name__}: {error})")
    return way(model)


def _loader(folder: Path, kind: ModelKind) -> tuple[Callable[[], nn.Module], Callable[[nn.Module], Way]]:
    """A function that loads the model, and one that tells how a CPU will compute it."""
    # Imported here, within `own_file_limit`, because all of these import mlx-lm.
    from mlx_lm.utils import load_model

    from pippin.engines.language.model.encoders import attends_both_ways, encoder_of, is_encoder
    from pippin.engines.language.upstream.stored import classes_in
    from pippin.engines.language.vision import checkpoint
    from pippin.engines.reranking import is_classifier

    config = object_in(folder / "config.json")
    if kind in ("embeddings", "reranking") and is_encoder(config):
        classifies = kind == "reranking" and is_classifier(config)
        return partial(encoder_of, folder, config, classifies=classifies), way_of_encoder
    if kind in ("embeddings", "reranking") and attends_both_ways(config):
        return nn.Module, lambda _: Way("float32", "its tokens attend to those behind them")
    if is_repacked(folder):
        return nn.Module, lambda _: Way("float32", "its experts lie on the disk, which mlx-vlm computes")
    if checkpoint.is_vision(folder):
        return nn.Module, lambda _: Way("float32", "it takes media, which mlx-vlm computes")
    return lambda: load_model(folder, lazy=True, strict=False, get_model_classes=classes_in(folder))[
        0
    ], way_of


if __name__ == "__main__":
    with own_file_limit():
        found = way_of_folder(Path(sys.argv[1]), cast(ModelKind, sys.argv[2]))
    sys.stdout.write(json.dumps(msgspec.to_builtins(found)) + "\n")
