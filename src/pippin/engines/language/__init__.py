"""Language models: the kind's two doors, which import what they lead to: much of this room needs no mlx.

Begin with `step/engine.py`.
"""

from typing import TYPE_CHECKING

from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress

if TYPE_CHECKING:
    from pippin.engines.language.prompt.preparer import LanguagePreparer
    from pippin.engines.language.step.engine import LanguageEngine


def open_preparer(spec: WorkerSpec) -> "LanguagePreparer":
    from pippin.engines.language.prompt import preparer

    return preparer.open_preparer(spec)


def open_engine(spec: WorkerSpec, preparer: "LanguagePreparer", progress: LoadProgress) -> "LanguageEngine":
    from pippin.engines.language import loading

    return loading.open_engine(spec, preparer, progress)
