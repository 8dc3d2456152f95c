"""Image generation and editing: the kind's two doors.

Imports wait until the BLAS stands: it must be in the process before mlx is.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from pippin.config.model_options import ModelOptions
from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress
from pippin.engines.device import accelerate_blas

if TYPE_CHECKING:
    from pippin.engines.blocking import BlockingEngine
    from pippin.engines.images.engine import ImagePreparer


def open_preparer(spec: WorkerSpec) -> "ImagePreparer":
    accelerate_blas(msgspec.convert(spec.options, ModelOptions), spec.threads)
    from pippin.engines.images import engine

    return engine.open_preparer(spec)


def open_engine(spec: WorkerSpec, preparer: "ImagePreparer", progress: LoadProgress) -> "BlockingEngine[Any]":
    from pippin.engines.images import engine

    return engine.open_engine(spec, preparer, progress)
