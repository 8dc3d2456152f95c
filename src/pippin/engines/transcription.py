"""Speech to text: the models of mlx-audio, fed with audio that was decoded beside them."""

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, Progress, Segment, Transcribed, Usage, Word
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import Task, Transcribe
from pippin.engines import sound
from pippin.engines.base import Job, LoadProgress, Preparer
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call

RATE = 16000
WINDOW_SECONDS = 30.0


class TranscriptionPreparer:
    """Decodes audio within limits, beside the model."""

    def __init__(self, info: ModelInfo) -> None:
        if importlib.util.find_spec("mlx_audio") is None:
            raise ServerError("load_failed", 'Speech models need an extra: pip install "pippin[audio]".')
        sound.require_av()
        self.info = info

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        if not isinstance(task, Transcribe):
            raise ServerError(
                "invalid_request", f"{self.info.id} turns speech into text; send it audio.", "model"
            )
        samples = sound.decode(task.audio, RATE, param="file")
        # OpenAI counts audio in tokens of a tenth of a second; nothing else about them is public.
        accepted = Accepted(prompt_tokens=max(1, round(samples.size / RATE * 10)))
        return BlockingJob[nn.Module](id, accepted, transcriber(task, samples))


def open_preparer(spec: WorkerSpec) -> TranscriptionPreparer:
    return TranscriptionPreparer(spec.info)


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> BlockingEngine[nn.Module]:
    folder = Path(spec.info.path or "")

    def load() -> nn.Module:
        from mlx_audio.stt.utils import load_model

        progress(0, 1, "weights")
        model = load_model(folder, strict=True)
        if mx.default_device().type == mx.DeviceType.cpu:
            model.set_dtype(mx.float32)
            if hasattr(model, "dtype"):
                model.dtype = mx.float32  # whisper casts its input to this
        mx.eval(model.parameters())
        progress(1, 1, "weights")
        return model

    return BlockingEngine(load)


def transcriber(task: Transcribe, samples: sound.Samples) -> Callable[[nn.Module, Call], None]:
    """The whole call on one request, on the model's thread."""
    duration = samples.size / RATE

    def run(model: nn.Module, call: Call) -> None:
        result = model.generate(samples, **_arguments(model, task, call, duration))
        segments = list(_segments(result.segments or (), task.words))
        for segment in segments:
            call.emit(segment)
        text = result.text.strip()
        call.emit(
            Transcribed(
                text=text,
                language=result.language or task.language,
                duration=duration,
                usage=Usage(
                    prompt_tokens=max(1, round(duration * 10)),
                    completion_tokens=sum(len(segment.tokens) for segment in segments),
                ),
            )
        )

    return run


def _arguments(model: nn.Module, task: Transcribe, call: Call, duration: float) -> dict[str, Any]:
    """Keywords of mlx-audio's `generate`. Raises `ServerError` where a model lacks what was asked for."""
    arguments: dict[str, Any] = {"verbose": None}
    is_whisper = hasattr(model, "get_tokenizer") and hasattr(model, "dims")
    if not is_whisper:
        for name, asked in (("translate", task.translate), ("words", task.words), ("prompt", task.prompt)):
            if asked:
                raise ServerError("unsupported", f"This model has no `{name}`; leave it out.", name)
        if task.language:
            arguments["language"] = task.language
        if task.temperature is not None:
            arguments["temperature"] = task.temperature
        return arguments
    _watch(model, call, duration)
    arguments["language"] = _language(model, task.language)
    arguments["task"] = "translate" if task.translate else "transcribe"
    arguments["word_timestamps"] = task.words
    arguments["initial_prompt"] = task.prompt
    if task.temperature is not None:
        arguments["temperature"] = task.temperature
    if task.translate and not model.is_multilingual:
        raise ServerError("unsupported", "This model knows English only; it can't translate.", "model")
    return arguments


def _language(model: nn.Module, language: str | None) -> str | None:
    if language is None:
        return None
    known: tuple[str, ...] = model.get_tokenizer().all_language_codes
    code = language.lower().split("-")[0]
    if code not in known:
        raise ServerError(
            "invalid_request",
            f"language is {language!r}; this model knows {', '.join(sorted(known))}.",
            "language",
        )
    return code


def _watch(model: nn.Module, call: Call, duration: float) -> None:
    """Have whisper report after every window that it decodes, and stop when nobody listens any more."""
    decode = type(model).decode
    total = max(1, int(np.ceil(duration / WINDOW_SECONDS)))
    done = 0

    def watched(mel: mx.array, options: Any) -> Any:
        nonlocal done
        call.emit(Progress(min(done, total), total))
        done += 1
        return decode(model, mel, options)

    model.decode = watched


def _segments(found: Iterable[dict[str, Any]], with_words: bool) -> Iterable[Segment]:
    for number, segment in enumerate(found):
        words = tuple(
            Word(
                text=word["word"],
                start=float(word["start"]),
                end=float(word["end"]),
                probability=float(word["probability"]) if "probability" in word else None,
            )
            for word in (segment.get("words") or () if with_words else ())
        )
        yield Segment(
            id=number,
            start=float(segment.get("start", 0.0)),
            end=float(segment.get("end", 0.0)),
            text=segment.get("text", ""),
            tokens=tuple(int(token) for token in segment.get("tokens") or ()),
            temperature=float(segment.get("temperature", 0.0)),
            avg_logprob=float(segment.get("avg_logprob", 0.0)),
            compression_ratio=float(segment.get("compression_ratio", 0.0)),
            no_speech_prob=float(segment.get("no_speech_prob", 0.0)),
            words=words,
        )
