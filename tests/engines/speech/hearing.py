"""A model that hears, opened from its folder, and what it makes of a recording."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pippin.catalog.info import read_info
from pippin.core.events import Event
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Transcribe
from pippin.engines import transcription
from pippin.engines.blocking import BlockingEngine
from pippin.engines.transcription import TranscriptionPreparer
from tests.engines.driving import no_progress, run

Loaded = tuple[TranscriptionPreparer, BlockingEngine[Any], Path]


@contextmanager
def opened(folder: Path) -> Iterator[Loaded]:
    info = read_info(folder)
    assert info.kind == "transcription"
    spec = WorkerSpec(info=info, threads=1)
    preparer = transcription.open_preparer(spec)
    engine = transcription.open_engine(spec, preparer, no_progress)
    yield preparer, engine, folder
    engine.close()


def hear(loaded: Loaded, data: bytes, **fields: Any) -> list[Event]:
    preparer, engine, _ = loaded
    job = preparer.prepare("one", Transcribe(audio=data, **fields))
    assert not isinstance(job, tuple)
    return run(engine, job)["one"]
