"""Reads what a model folder says about itself."""

from pathlib import Path
from pippin.core.models import ModelInfo


def read_info(folder: Path) -> ModelInfo:
    return ModelInfo(id=folder.name, kind="language", path=str(folder))
