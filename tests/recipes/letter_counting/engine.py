"""A model that counts how often its letters stand in a text."""

import json
from pathlib import Path

from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, LettersCounted
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import CountLetters, Task
from pippin.engines.base import Job, LoadProgress, Preparer
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call


class LetterPreparer:
    def __init__(self, spec: WorkerSpec) -> None:
        self.info: ModelInfo = spec.info

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        if not isinstance(task, CountLetters):
            raise ServerError("unsupported", f"{self.info.id} only counts letters.", "model")

        def run(letters: str, call: Call) -> None:
            call.emit(LettersCounted(sum(letter in letters for letter in task.text), len(task.text)))

        return BlockingJob(id, Accepted(len(task.text)), run)


def open_preparer(spec: WorkerSpec) -> LetterPreparer:
    return LetterPreparer(spec)


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> BlockingEngine[str]:
    def load() -> str:
        return str(json.loads((Path(spec.info.path or "") / "config.json").read_text())["letters"])

    return BlockingEngine(load)
