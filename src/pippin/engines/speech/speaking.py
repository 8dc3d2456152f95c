"""A request for speech, from its check to encoded sound."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, SpeechChunk, Spoken, Usage, Voices
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import ListVoices, Speak, Task
from pippin.engines import sound
from pippin.engines.base import Job, LoadProgress, Preparer
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call
from pippin.engines.encoding import cast_weights
from pippin.engines.refusals import library_refusals
from pippin.engines.speech.keywords import Keywords, arguments_of, keywords_of
from pippin.engines.speech.repositories import load_speaker
from pippin.engines.speech.voices import RECORDING, TAKES_FILES, FolderVoices, voices_of

RATE = 24000
"""Samples a second of a recording to imitate, for most models."""

REFERENCE_SECONDS = 60.0
"""The longest recording of a voice to imitate."""


@dataclass(frozen=True)
class SpeechModel:
    """A loaded model, and the keywords that it uses."""

    library: Any
    keywords: Keywords

    @classmethod
    def of(cls, library: Any) -> "SpeechModel":
        return cls(library, keywords_of(library))

    @property
    def rate(self) -> int:
        """Samples a second of its speech, and of a recording to imitate."""
        return int(getattr(self.library, "sample_rate", None) or RATE)


class SpeechPreparer:
    """Checks the fields of a speech request, and decodes its reference recording."""

    def __init__(self, info: ModelInfo) -> None:
        sound.require_extra()
        self.info = info
        self._voices = voices_of(Path(info.path or ""), info.id)

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        match task:
            case ListVoices():
                return (Voices(self._voices.names),)
            case Speak():
                if not task.text.strip():
                    raise ServerError("invalid_request", "input is empty; send the text to speak.", "input")
                asked = Asked(task, self._voices)
                call = speaker(asked, asked.reference(RATE))
                return BlockingJob[SpeechModel](id, Accepted(len(task.text)), call)
            case _:
                raise ServerError(
                    "invalid_request", f"{self.info.id} turns text into speech; send it text.", "model"
                )


def open_preparer(spec: WorkerSpec) -> SpeechPreparer:
    return SpeechPreparer(spec.info)


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> BlockingEngine[SpeechModel]:
    options = convert(spec.options, ModelOptions)

    def load() -> SpeechModel:
        progress(0, spec.info.size_bytes, "weights")
        model = load_speaker(spec.info)
        cast_weights(model, options)
        return SpeechModel.of(model)

    return BlockingEngine(load)


class Asked:
    """A request with the voice that it names. The constructor raises `ServerError` for an unknown voice."""

    def __init__(self, task: Speak, voices: FolderVoices) -> None:
        self.task = task
        name = "" if task.voice is None else voices.checked(task.voice)
        path = voices.files.get(name)
        self._recording = path if path is not None and path.suffix == RECORDING else None
        takes_file = path is not None and voices.family in TAKES_FILES
        self.voice = None if self._recording else str(path) if takes_file else name or None

    def reference(self, rate: int) -> sound.Samples | None:
        """The recording of a voice to imitate: the client's, or that of a voice in the model's folder. Raises
        `ServerError` naming it."""
        if self.task.reference_audio is not None:
            return sound.decode(self.task.reference_audio, rate, param="ref_audio", longest=REFERENCE_SECONDS)
        if self._recording is not None:
            return sound.decode(self._recording.read_bytes(), rate, param="voice", longest=REFERENCE_SECONDS)
        return None


def speaker(asked: Asked, reference: sound.Samples | None) -> Callable[[SpeechModel, Call], None]:
    """The call that a job runs on the model's thread: samples from the model, encoded piece by piece as they come.

    `reference` was decoded at `RATE`; if the model speaks at another rate, it is decoded again, as in mlx-audio.
    """
    task = asked.task

    def run(model: SpeechModel, call: Call) -> None:
        encoder: sound.SpeechEncoder | None = None
        rate, spoken, tokens = 0, 0, 0
        heard = reference if model.rate == RATE else asked.reference(model.rate)
        arguments = arguments_of(
            model.keywords, task, asked.voice, None if heard is None else mx.array(heard)
        )
        for piece, rate, count in _pieces(model.library, task, arguments):
            call.check()
            tokens += count
            if not piece.size:  # which the encoders refuse
                continue
            encoder = encoder or sound.SpeechEncoder(task.format, rate, task.rate)
            spoken += piece.size
            if data := encoder.feed(piece):
                call.emit(SpeechChunk(data))
        if encoder is None:
            raise ServerError(
                "invalid_request", "The model made no sound of this input; send other text.", "input"
            )
        if data := encoder.finish():
            call.emit(SpeechChunk(data))
        usage = Usage(prompt_tokens=len(task.text), completion_tokens=tokens)
        call.emit(Spoken(sample_rate=rate, duration=spoken / rate, usage=usage))

    return run


def _pieces(model: Any, task: Speak, arguments: dict[str, Any]) -> Iterator[tuple[sound.Samples, int, int]]:
    """Yield samples, their rate per second and the count of their tokens, as the model generates them."""
    if task.seed is not None:
        mx.random.seed(task.seed)
    with library_refusals("input"):
        try:
            for result in model.generate(**arguments):
                samples = np.array(result.audio.astype(mx.float32)).reshape(-1)
                yield samples, int(result.sample_rate), int(result.token_count)
        except OSError as error:  # some repositories and files are fetched by the first request for them
            raise ServerError(
                "load_failed", f"The model lacks a file for this request: {str(error).splitlines()[0]:.400s}"
            ) from error
