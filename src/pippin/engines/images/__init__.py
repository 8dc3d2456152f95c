"""The engine of image models, which paints with mlx-vlm's pipelines. Begin with `painting.py`."""

import importlib.util
from pathlib import Path
from typing import Any

from pippin.config.errors import install_command
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress, Preparer
from pippin.engines.blocking import BlockingEngine


def open_preparer(spec: WorkerSpec) -> Preparer:
    """Raises `ServerError("load_failed")` if mlx-vlm is not installed, or does not paint with this model."""
    if importlib.util.find_spec("mlx_vlm") is None:
        raise ServerError("load_failed", f"Image models need an extra: {install_command('vision')}")
    from pippin.engines.images.painting import ImagePreparer, find_classes

    classes = find_classes(Path(spec.info.path or ""))
    if classes is None:
        raise ServerError(
            "load_failed",
            f"mlx-vlm has no pipeline for the model {spec.info.id!r}; docs/images.md names the families that it has.",
        )
    if classes.family == "bonsai":
        raise ServerError(
            "load_failed",
            f"The model {spec.info.id!r} computes with kernels for Apple's GPU alone, and its decoder is in another "
            "repository: take another family of docs/images.md, or paint with mlx-vlm itself.",
        )
    return ImagePreparer(spec, classes)


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> BlockingEngine[Any]:
    from pippin.engines.images import painting

    assert isinstance(preparer, painting.ImagePreparer)
    return painting.open_engine(spec, preparer, progress)
