"""Language models: the kind's two doors.

Imports wait until the BLAS stands: it must be in the process before mlx is.
"""

from typing import TYPE_CHECKING

import msgspec

from pippin.config.model_options import ModelOptions
from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress
from pippin.engines.device import accelerate_blas

if TYPE_CHECKING:
    from pippin.engines.language.engine import LanguageEngine
    from pippin.engines.language.prompt import LanguagePreparer


def open_preparer(spec: WorkerSpec) -> "LanguagePreparer":
    accelerate_blas(msgspec.convert(spec.options, ModelOptions), spec.threads)
    from pippin.engines.language import prompt

    return prompt.open_preparer(spec)


def open_engine(spec: WorkerSpec, preparer: "LanguagePreparer", progress: LoadProgress) -> "LanguageEngine":
    accelerate_blas(msgspec.convert(spec.options, ModelOptions), spec.threads)
    from pippin.engines.language.loading import load_engine

    return load_engine(spec, preparer, progress)
