"""The engine of image models. It paints with mflux's pipelines (`painting.py`, presets of `core/image_presets.py`), or
with mlx-vlm's own (`library.py`) if mflux is not installed or has no preset for the model. Begin with `painting.py`."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.image_presets import preset_of
from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress, Preparer
from pippin.engines.blocking import BlockingEngine

if TYPE_CHECKING:
    from pippin.engines.images.library import LibraryImagePreparer


def open_preparer(spec: WorkerSpec) -> Preparer:
    """Raises `ServerError("load_failed")` if no installed library paints with this model."""
    from pippin.engines.images.painting import ImagePreparer

    has_mflux = importlib.util.find_spec("mflux") is not None
    options = convert(spec.options, ModelOptions)
    unknown = None
    if has_mflux:
        try:
            preset_of(spec.info, options.config_name)
            return ImagePreparer(spec)
        except ServerError as error:
            unknown = error
    if (found := _by_library(spec, options)) is not None:
        return found
    if unknown is not None:
        raise unknown
    raise ServerError(
        "load_failed",
        'Image models need an extra: pip install "pippin[vision]" for those that mlx-vlm paints, or, on a Mac or with '
        'CUDA, pip install "pippin[images]" for the presets of mflux (docs/images.md).',
    )


def _by_library(spec: WorkerSpec, options: ModelOptions) -> "LibraryImagePreparer | None":
    if options.config_name is not None or importlib.util.find_spec("mlx_vlm") is None:
        return None
    from pippin.engines.images.library import LibraryImagePreparer, find_classes

    classes = find_classes(Path(spec.info.path or ""))
    return None if classes is None else LibraryImagePreparer(spec, classes)


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> BlockingEngine[Any]:
    from pippin.engines.images import painting
    from pippin.engines.images.painting import ImagePreparer

    if isinstance(preparer, ImagePreparer):
        return painting.open_engine(spec, preparer, progress)
    from pippin.engines.images import library

    assert isinstance(preparer, library.LibraryImagePreparer)
    return library.open_engine(spec, preparer, progress)
