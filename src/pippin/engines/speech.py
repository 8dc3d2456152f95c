"""The engine of speech models: text to encoded audio, by the models of mlx-audio."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
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

RATE = 24000
"""Samples a second of a recording to imitate, for most models."""

REFERENCE_SECONDS = 60.0
"""The longest recording of a voice to imitate."""

VOICE_SUFFIXES = (".safetensors", ".npz", ".wav", ".json")


def voices_of(folder: Path) -> tuple[str, ...]:
    """The names of the voices that a model folder has, one file for each in `voices/`."""
    found = folder / "voices"
    if not found.is_dir():
        return ()
    return tuple(sorted({path.stem for path in found.iterdir() if path.suffix in VOICE_SUFFIXES}))


class SpeechPreparer:
    """Checks the fields of a speech request, and decodes its reference recording."""

    def __init__(self, info: ModelInfo) -> None:
        sound.require_extra()
        self.info = info
        self._voices = voices_of(Path(info.path or ""))

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        match task:
            case ListVoices():
                return (Voices(self._voices),)
            case Speak():
                return self._speak(id, task)
            case _:
                raise ServerError(
                    "invalid_request", f"{self.info.id} turns text into speech; send it text.", "model"
                )

    def _speak(self, id: str, task: Speak) -> Job:
        if not task.text.strip():
            raise ServerError("invalid_request", "input is empty; send the text to speak.", "input")
        if task.voice is not None and self._voices and task.voice not in self._voices:
            raise ServerError(
                "invalid_request",
                f"voice is {task.voice!r}; {self.info.id} has {', '.join(self._voices)}.",
                "voice",
            )
        return BlockingJob[nn.Module](id, Accepted(len(task.text)), speaker(task, _reference(task, RATE)))


def open_preparer(spec: WorkerSpec) -> SpeechPreparer:
    return SpeechPreparer(spec.info)


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> BlockingEngine[nn.Module]:
    folder = Path(spec.info.path or "")
    options = convert(spec.options, ModelOptions)

    def load() -> nn.Module:
        from mlx_audio.tts.utils import load_model

        progress(0, spec.info.size_bytes, "weights")
        try:
            model = load_model(folder)
        except ValueError as error:
            raise ServerError("load_failed", f"mlx-audio can't speak with {spec.info.id}: {error}") from error
        cast_weights(model, options)
        progress(spec.info.size_bytes, spec.info.size_bytes, "weights")
        return model

    return BlockingEngine(load)


def _reference(task: Speak, rate: int) -> sound.Samples | None:
    """The recording of a voice to imitate. Raises `ServerError` naming it."""
    if task.reference_audio is None:
        return None
    return sound.decode(task.reference_audio, rate, param="ref_audio", longest=REFERENCE_SECONDS)


def speaker(task: Speak, reference: sound.Samples | None) -> Callable[[nn.Module, Call], None]:
    """The call that a job runs on the model's thread: samples from the model, encoded piece by piece as they come.

    `reference` was decoded at `RATE`; for a model that speaks at another, it is decoded anew, as mlx-audio does.
    """

    def run(model: nn.Module, call: Call) -> None:
        encoder: sound.SpeechEncoder | None = None
        rate, spoken, tokens = 0, 0, 0
        own = int(getattr(model, "sample_rate", None) or RATE)
        heard = reference if own == RATE else _reference(task, own)
        for piece, rate, count in _pieces(model, task, heard):
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


def _pieces(
    model: nn.Module, task: Speak, reference: sound.Samples | None
) -> Iterator[tuple[sound.Samples, int, int]]:
    """Yield samples, their rate per second and the count of their tokens, as the model generates them."""
    if task.seed is not None:
        mx.random.seed(task.seed)
    arguments = _arguments(model, task, reference)
    try:
        for result in model.generate(**arguments):
            samples = np.array(result.audio.astype(mx.float32)).reshape(-1)
            yield samples, int(result.sample_rate), int(result.token_count)
    except ImportError as error:
        raise missing_package(error) from error


PHONEMES = ("misaki", "phonemizer", "espeakng_loader", "num2words", "spacy")
"""Packages that turn text into phonemes, of the extra `kokoro`."""


def missing_package(error: ImportError) -> ServerError:
    """The refusal of a model that needs a package which mlx-audio does not require.

    mlx-audio raises errors of its own, without a name, from those that name the package.
    """
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 10:
        causes.append(cause)
    names = [each.name for each in causes if isinstance(each, ImportError) and each.name]
    if not names:
        return ServerError(
            "load_failed", f"This voice needs a Python package that is not installed: {error}.", "voice"
        )
    package = names[-1].partition(".")[0]
    way = 'pip install "pippin[kokoro]"' if package in PHONEMES else f"pip install {package}"
    message = f"This voice needs the Python package {package!r}, which is not installed: {way}."
    return ServerError("load_failed", message, "voice")


def _arguments(model: nn.Module, task: Speak, reference: sound.Samples | None) -> dict[str, Any]:
    """The arguments of the model's `generate`. Raises `ServerError` for a field that this model has no argument for."""
    known = inspect.signature(model.generate).parameters
    asked: dict[str, tuple[str, Any]] = {
        "voice": ("voice", task.voice),
        "speed": ("speed", None if task.speed == 1.0 else task.speed),
        "instructions": ("instruct", task.instructions),
        "lang_code": ("lang_code", task.language),
        "ref_audio": ("ref_audio", None if reference is None else mx.array(reference)),
        "ref_text": ("ref_text", task.reference_text),
        "gender": ("gender", task.gender),
        "pitch": ("pitch", None if task.pitch == 1.0 else task.pitch),
        "temperature": ("temperature", task.temperature),
        "top_p": ("top_p", task.top_p),
        "top_k": ("top_k", task.top_k),
        "repetition_penalty": (
            "repetition_penalty",
            None if task.repetition_penalty == 1.0 else task.repetition_penalty,
        ),
        "streaming_interval": ("streaming_interval", task.streaming_interval if task.stream else None),
        "max_tokens": ("max_tokens", task.max_tokens),
    }
    arguments: dict[str, Any] = {"text": task.text}
    for param, (keyword, value) in asked.items():
        if value is None:
            continue
        if keyword not in known:
            raise ServerError("unsupported", f"This model has no `{param}`; leave it out.", param)
        arguments[keyword] = value
    for param, (keyword, _) in asked.items():
        if (
            keyword in known
            and known[keyword].default is inspect.Parameter.empty
            and keyword not in arguments
        ):
            raise ServerError("invalid_request", f"This model needs `{param}`; send it.", param)
    if "verbose" in known:
        arguments["verbose"] = False
    if task.stream and "stream" in known:
        arguments["stream"] = True
    return arguments
