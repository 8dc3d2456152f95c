"""The engine of transcription models: audio to text with timestamps, by the models of mlx-audio."""

import inspect
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
import numpy as np
from mlx.utils import tree_flatten

from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, Progress, Segment, Transcribed, Usage, Word
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.published import object_in, table
from pippin.core.tasks import Task, Transcribe
from pippin.engines import sound
from pippin.engines.base import Job, LoadProgress, NeedsWeightsError, Preparer
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call
from pippin.engines.encoding import cast_weights
from pippin.engines.language.upstream.classes import replaced
from pippin.engines.language.upstream.stored import read_arrays
from pippin.engines.refusals import library_refusals, missing_package, refused
from pippin.engines.speech.keywords import Keywords, keywords_of
from pippin.engines.whisper import whisper_tokenizer
from pippin.engines.whisper.settings import features_in, read_settings, refuse_unread

logger = logging.getLogger(__name__)

RATE = 16000
"""Samples a second that nearly all models of mlx-audio take."""

LONGEST_AT_ONCE = 120.0
"""The most seconds that a model hears at once: attention over hours of audio does not fit in memory."""

SHORTEST = 0.1
"""The least seconds that a model hears at once."""

CUTTING = ("chunk_duration", "streaming_chunk_duration", "vad_max_chunk_s")
"""The arguments of models that cut long recordings themselves."""

OF_WAVES = {"do_normalize": True, "sampling_rate": RATE}
"""Fields of wav2vec2's features that mlx-audio does not read, with the value that it takes for granted."""

MISFIT = re.compile(r"(Received \d+ parameters not in model|Missing \d+ parameters)")
"""How errors of MLX's strict `load_weights` begin."""

SEGMENT_SECONDS = 30.0
"""Whisper decodes audio in pieces of this length; a streamed transcription is cut into pieces no longer than it."""


class TranscriptionPreparer:
    """Decodes the audio of a request within limits, beside the step loop."""

    def __init__(self, spec: WorkerSpec) -> None:
        sound.require_extra()
        self.info: ModelInfo = spec.info
        self.rate: int | None = None  # the loaded model's

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        assert isinstance(task, Transcribe)
        # Many clients send this for a language that is to be detected.
        if (task.language or "").lower() == "auto":
            task = msgspec.structs.replace(task, language=None)
        if self.rate is None:
            raise NeedsWeightsError
        samples = sound.decode(task.audio, self.rate, param="file")
        accepted = Accepted(prompt_tokens=audio_tokens(samples.size / self.rate))
        return BlockingJob[nn.Module](id, accepted, partial(transcribe, task, samples, self.rate))


open_preparer = TranscriptionPreparer


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> BlockingEngine[nn.Module]:
    assert isinstance(preparer, TranscriptionPreparer)
    folder = Path(spec.info.path or "")

    def load() -> nn.Module:
        with warnings.catch_warnings():
            # Nothing that the operator must mend: `_give_tokenizer` adds a missing tokenizer.
            warnings.filterwarnings("ignore", message="Could not load WhisperProcessor")
            model = read_model(folder, spec.info.id)
        _require_hearing(model, spec.info.id)
        cast_weights(model, spec)
        if is_whisper(model):
            prepare_whisper(model, spec.info.id, folder)
        preparer.rate = rate_of(model)
        return model

    return BlockingEngine(load)


def read_model(folder: Path, name: str) -> nn.Module:
    """mlx-audio's model. Raises `ServerError("load_failed")` if mlx-audio can't build one.

    mlx-audio does not require exactly the weights of an architecture: some of its models compute parameters, and
    some published checkpoints have unused weights. A mismatch is logged, because it may be a broken conversion.
    """
    from mlx_audio.stt.utils import load_model

    try:
        try:
            model = load_model(folder, strict=True)
        except ValueError as error:
            if MISFIT.match(str(error)) is None:
                raise
            logger.warning("The weights of %s are not just those of its architecture: %.500s", name, error)
            model = _read_loosely(folder)
        if is_whisper(model):
            from pippin.engines.whisper.modules import compute_once

            if any(folder.glob("*.safetensors")):
                _read_exactly(model, folder)
            compute_once(model)
        if type(model).__module__.startswith("mlx_audio.stt.models.mms."):
            said = {**OF_WAVES, **features_in(folder)}
            if wrong := [name for name, usual in OF_WAVES.items() if said[name] != usual]:
                raise ValueError(f"{wrong[0]} {said[wrong[0]]!r} of its features is not read by its class")
        config, read = object_in(folder / "config.json"), getattr(model, "config", None)
        for field, told in table(config.get("rope_parameters")).items():
            if told != getattr(read, field, told):
                raise ValueError(f"{field} {told!r} of rope_parameters is not read by its class")
        return model
    except ValueError as error:
        raise ServerError("load_failed", f"mlx-audio can't hear with {name}: {error}") from error
    except ImportError as error:
        raise missing_package(error) from error


def _read_loosely(folder: Path) -> nn.Module:
    """A model that computes parameters, or leaves some unused. Raises `ValueError` for layers without weights, which
    would keep random numbers."""
    from mlx_audio.stt.utils import load_model

    given: dict[int, set[str]] = {}

    def noting(own: Any) -> Any:
        def update(self: nn.Module, parameters: Any, *others: Any, **options: Any) -> Any:
            given.setdefault(id(self), set()).update(path for path, _ in tree_flatten(parameters))
            return own(self, parameters, *others, **options)

        return update

    with replaced((nn.Module, "update", noting)):
        model = load_model(folder)
    layers = dict(model.named_modules())
    known = {
        f"{path}.{each}" if path else each for path in layers for each in given.get(id(layers[path]), ())
    }
    learned = (nn.Linear, nn.Conv1d, nn.Conv2d)
    # A head that is the embedding is not stored.
    missing = sorted(
        f"{path}.weight"
        for path, layer in layers.items()
        if isinstance(layer, learned) and f"{path}.weight" not in known and "lm_head" not in path
    )
    if missing and given:
        raise ValueError(
            f"its files lack {missing[0]} and {len(missing) - 1} other weights of the model that its config.json "
            "describes to mlx-audio"
        )
    return model


def _require_hearing(model: nn.Module, name: str) -> None:
    """Raises `ServerError("load_failed")` for a model that does not turn sound alone into text."""
    problem = "has no `generate` in mlx-audio"
    if callable(getattr(model, "generate", None)):
        first, *_ = inspect.signature(model.generate).parameters
        needed = sorted(keywords_of(model).needed - {first})
        if not needed:
            return
        problem = f"needs {' and '.join(needed)} beside the sound"
    message = f"{name} can't transcribe: it {problem}. Take a model that turns speech into text."
    raise ServerError("load_failed", message)


def _read_exactly(model: nn.Module, folder: Path) -> None:
    """Read Whisper's weights and positions as they are stored: mlx-audio rounds them to float16, and reads every
    safetensors file. Raises `ValueError` for settings that it does not read."""
    config = object_in(folder / "config.json")
    arrays = read_arrays(folder, config)
    refuse_unread(model, folder, arrays)
    floats = (array.dtype for array in arrays.values() if mx.issubdtype(array.dtype, mx.floating))
    model.dtype = next(floats, mx.float32)
    model.load_weights(list(model.sanitize(arrays).items()), strict=False)
    positions = arrays.get("model.encoder.embed_positions.weight")
    if positions is not None:
        model.encoder._positional_embedding = positions


def prepare_whisper(model: nn.Module, name: str, folder: Path) -> None:
    """Raises `ServerError("load_failed")` for a tokenizer without timestamps, or settings that can't be honoured."""
    # Whisper casts its input to `model.dtype`, so that has to be the type of its weights.
    model.dtype = model.encoder.conv1.weight.dtype
    if not any((folder / file).exists() for file in ("tokenizer.json", "vocab.json")):
        _give_tokenizer(model)
    tokenizer = model.get_tokenizer()
    if tokenizer.timestamp_begin <= tokenizer.no_timestamps:
        raise ServerError(
            "load_failed",
            f"The tokenizer of {name} has no tokens for times (`<|0.00|>` and on); take tokenizer.json from the "
            "original model.",
        )
    model.settings = settings = read_settings(model, tokenizer, folder, name)
    if heads := settings.alignment_heads or _stored_heads(folder):
        model.set_alignment_heads([*map(list, heads)])
    try:
        model.spoken = None if settings.language is None else _spoken_language(model, settings.language)
    except ServerError as error:
        message = f"In generation_config.json of {name} {error.report.message}"
        raise ServerError("load_failed", message) from error


def _stored_heads(folder: Path) -> list[list[int]]:
    """The heads that tell when a word is heard, which conversions by MLX's own examples have among the weights."""
    files = (folder / name for name in ("weights.npz", "weights.safetensors", "model.safetensors"))
    arrays: Any = next((mx.load(str(file)) for file in files if file.is_file()), {})
    return arrays["alignment_heads"].astype(mx.int32).tolist() if "alignment_heads" in arrays else []


def _give_tokenizer(model: nn.Module) -> None:
    """Use OpenAI's vocabulary for a folder that holds weights alone, as mlx-community's do."""
    from mlx_audio.stt.models.whisper.tokenizer import LANGUAGES

    languages = tuple(LANGUAGES)[: model.num_languages]
    model._processor = SimpleNamespace(
        tokenizer=whisper_tokenizer(languages, multilingual=model.is_multilingual)
    )


def is_whisper(model: nn.Module) -> bool:
    from mlx_audio.stt.models.whisper.whisper import Model

    return isinstance(model, Model)


def rate_of(model: nn.Module) -> int:
    """The samples in a second that a model takes, where it or its package says so."""
    frontend = getattr(model, "preprocessor_config", None)
    package = sys.modules[type(model).__module__]
    candidates = (
        getattr(model, "sample_rate", None),
        getattr(frontend, "sample_rate", None),
        getattr(package, "AUDIO_SAMPLE_RATE", None),
    )
    return next((int(each) for each in candidates if isinstance(each, (int, float)) and each > 0), RATE)


def transcribe(task: Transcribe, samples: sound.Samples, rate: int, model: nn.Module, call: Call) -> None:
    """Run a request on the model's thread: emit segments as they come, then the whole transcript."""
    from mlx_audio.stt.models.whisper.tokenizer import LANGUAGES

    duration = samples.size / rate
    arguments = _arguments(model, task, call, duration, rate)
    cuts_itself = is_whisper(model) or not keywords_for_hearing(model).read.isdisjoint(CUTTING)
    cut = task.stream or (duration > LONGEST_AT_ONCE and not cuts_itself)
    texts: list[str] = []
    count, begin, tokens = 0, 0.0, 0
    for piece in split_at_silence(samples, rate) if cut else [samples]:
        call.check()
        with library_refusals("file"), _as_heard(model, piece, rate) as given:
            result = model.generate(given, **arguments)
        for segment in _segments(_timed(result), task.words, first=count, begin=begin):
            call.emit(segment)
            count += 1
            tokens += len(segment.tokens)
        texts.append(result.text.strip())
        begin += piece.size / rate
        if is_whisper(model) and arguments["language"] is None:
            # The language that was detected in the first piece holds for the others.
            arguments["language"] = result.language
    usage = Usage(prompt_tokens=audio_tokens(duration), completion_tokens=tokens)
    found = arguments.get("language") if is_whisper(model) else task.language
    found = ENGLISH if task.translate else found or getattr(result, "language", None)
    language = found if isinstance(found, str) else None
    text = " ".join(filter(None, texts))
    named = LANGUAGES.get(str(language).lower())
    call.emit(Transcribed(text=text, language=language, duration=duration, language_name=named, usage=usage))


@contextmanager
def _as_heard(model: nn.Module, samples: sound.Samples, rate: int) -> Iterator[Any]:
    """The samples in the form that the model takes: an MLX array, as mlx-audio's `load_audio` gives; the path of a file
    for Voxtral, whose processor refuses arrays.

    Audio shorter than `SHORTEST` is padded with silence: several models fail on less than one of their windows.
    """
    samples = np.pad(samples, (0, max(0, int(SHORTEST * rate) - samples.size)))
    known = inspect.signature(model.generate).parameters.get("audio")
    if "List" in str(getattr(known, "annotation", ""))[:12]:
        with tempfile.TemporaryDirectory(prefix="pippin-sound-") as folder:
            path = Path(folder) / "speech.wav"
            encoder = sound.SpeechEncoder("wav", rate)
            path.write_bytes(encoder.feed(samples) + encoder.finish())
            yield str(path)
    else:
        yield mx.array(samples)


def _timed(result: Any) -> list[dict[str, Any]]:
    """The segments of a result; NeMo's models give sentences of tokens instead."""
    sentences = getattr(result, "sentences", None)
    if sentences is None:
        return list(getattr(result, "segments", None) or ())
    return [
        {name: getattr(each, name) for name in ("text", "start", "end")}
        | {"tokens": [t.id for t in each.tokens]}
        for each in sentences
    ]


def audio_tokens(duration: float) -> int:
    """The tokens that `duration` seconds of audio count for: ten a second, as in OpenAI's usage figures."""
    return max(1, round(duration * 10))


def split_at_silence(samples: sound.Samples, rate: int = RATE) -> list[sound.Samples]:
    """Cut into pieces of at most `SEGMENT_SECONDS`, each at the quietest tenth of a second of its last third."""
    frame = rate // 10
    pieces = []
    while samples.size > SEGMENT_SECONDS * rate:
        first, last = int(SEGMENT_SECONDS * 2 / 3 * 10), int(SEGMENT_SECONDS * 10)
        loudness = np.square(samples[first * frame : last * frame]).reshape(-1, frame).mean(axis=1)
        cut = (first + int(loudness.argmin())) * frame + frame // 2
        pieces.append(samples[:cut])
        samples = samples[cut:]
    return [*pieces, samples]


def keywords_for_hearing(model: nn.Module) -> Keywords:
    """The keywords of the model's `generate`; for a wrapper that forwards them, also those of the inner model."""
    inner = getattr(model, "_asr", None)
    found = keywords_of(model)
    return found if inner is None else replace(found, read=found.read | keywords_of(inner).read)


LANGUAGE_NAMES = ("source_language", "language", "source_lang")
"""What the models of mlx-audio call the spoken language, in order of precedence. If a model has the first, its second
is the language to translate into; if it has the second, that also serves as the third and as the answer's language."""

PROMPT_NAMES = ("context", "system_prompt")
"""What they call a text with names and words that may be heard. Their `prompt` is something else: an instruction."""

ENGLISH = "en"


def _plain_arguments(model: nn.Module, task: Transcribe, rate: int) -> dict[str, Any]:
    """The arguments of any model but Whisper. Raises `ServerError` for a field that it has no argument for."""
    keywords = keywords_for_hearing(model)
    # Models that can resample have one of these.
    arguments: dict[str, Any] = dict.fromkeys({"sampling_rate", "sample_rate"} & keywords.read, rate)
    if "verbose" in keywords.read:
        arguments["verbose"] = False
    default = inspect.signature(model.generate).parameters.get("chunk_duration")
    if default is not None and default.default is None:
        arguments["chunk_duration"] = LONGEST_AT_ONCE
    language = None if task.language is None else _spoken_language(model, task.language)
    asked: dict[str, tuple[str | None, Any]] = {
        "language": (keywords.first_of(LANGUAGE_NAMES), language),
        "words": (None, task.words or None),
        "prompt": (keywords.first_of(PROMPT_NAMES), task.prompt),
        "temperature": (keywords.first_of(("temperature",)), task.temperature),
        "max_tokens": (keywords.first_of(("max_tokens",)), task.max_tokens),
    }
    for param, (keyword, value) in asked.items():
        if value is None or (param == "temperature" and value == 0 and keyword is None):
            continue  # all models decode greedily unless told otherwise
        if keyword is None:
            raise ServerError("unsupported", f"This model has no `{param}`; leave it out.", param)
        arguments[keyword] = value
    return _translating(keywords, arguments) if task.translate else arguments


def _translating(keywords: Keywords, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that make Granite's and Canary's models answer in English."""
    if {"source_language", "language"} <= keywords.read:
        return {**arguments, "language": ENGLISH}
    if {"source_lang", "target_lang"} <= keywords.read:
        spoken = arguments.pop("language", None)
        if spoken is None:
            raise ServerError("invalid_request", "This model needs `language` to translate from.", "language")
        return {**arguments, "source_lang": spoken, "target_lang": ENGLISH}
    raise ServerError("unsupported", "This model does not translate; use /v1/audio/transcriptions.", "model")


def _spoken_language(model: nn.Module, language: str) -> str:
    """A client's language code in the form that the model knows: one of its own codes, or the English name.

    Raises `ServerError` for a language that is not in the model's list, if it has one: some models of mlx-audio would
    put an unknown language into their prompt as a word, and others would ignore it.
    """
    from mlx_audio.stt.models.whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE

    config = getattr(model, "config", None)
    lists = (
        is_whisper(model) and not model.is_multilingual and [ENGLISH],
        is_whisper(model) and sorted(model.get_tokenizer().all_language_codes),
        getattr(model, "lid_dict", None),
        getattr(config, "support_languages", None),
        getattr(config, "supported_languages", None),
    )
    listed = next(filter(None, lists), None)
    if not listed:
        return language
    known = {each.lower(): each for each in listed}
    code = language.lower().replace("_", "-")
    short = TO_LANGUAGE_CODE.get(code, code.partition("-")[0])
    for word in (code, short, LANGUAGES.get(short, "")):
        if word in known:
            return str(known[word])
    raise refused("language", f"is {language!r}; this model knows {', '.join(known.values())}.")


def _arguments(model: nn.Module, task: Transcribe, call: Call, duration: float, rate: int) -> dict[str, Any]:
    """The arguments of the model's `generate`. Raises `ServerError` for a field that this model has no argument for."""
    if not is_whisper(model):
        return _plain_arguments(model, task, rate)
    _decode_as_said(model, call, duration)
    if task.max_tokens is not None:
        raise ServerError("unsupported", "This model has no `max_tokens`; leave it out.", "max_tokens")
    tokenizer = model.get_tokenizer()
    if marks := [id_ for id_ in tokenizer.encode(task.prompt or "") if id_ >= tokenizer.eot]:
        mark = tokenizer.hf_tokenizer.convert_ids_to_tokens(marks[0])
        raise refused("prompt", f"spells {mark}, a mark of the model's own; leave it out.")
    arguments: dict[str, Any] = {
        "verbose": None,
        "language": model.spoken if task.language is None else _spoken_language(model, task.language),
        "fp16": model.dtype == mx.float16,
        "task": "translate" if task.translate else "transcribe",
        "word_timestamps": task.words,
        "initial_prompt": task.prompt,
        **model.settings.arguments,
    }
    # As in OpenAI's API, 0 is the default: the temperature begins at 0 and rises where decoding fails.
    if task.temperature:
        arguments["temperature"] = task.temperature
    if task.translate and not model.is_multilingual:
        raise ServerError("unsupported", "This model knows English only; it can't translate.", "model")
    return arguments


def _decode_as_said(model: nn.Module, call: Call, duration: float) -> None:
    """Have Whisper choose languages and tokens as its folder says, emit `Progress` before each segment that it decodes,
    and stop there if the request is cancelled."""
    detect, known = type(model).detect_language, model.settings.languages
    total = max(1, int(np.ceil(duration / SEGMENT_SECONDS)))
    done = 0

    def detecting(mel: mx.array) -> Any:
        tokens, found = detect(model, mel)
        return tokens, {code: share for code, share in found.items() if code in known} or found

    def reporting(mel: mx.array, options: Any) -> Any:
        from pippin.engines.whisper.choosing import decode

        nonlocal done
        call.emit(Progress(min(done, total), total))
        done += 1
        return decode(model, mel, options, model.settings)

    model.detect_language, model.decode = detecting, reporting


def _segments(
    found: Iterable[dict[str, Any]], with_words: bool, *, first: int, begin: float
) -> Iterable[Segment]:
    """The segments that mlx-audio found, numbered from `first` on, with `begin` seconds added to their times."""
    figures = ("temperature", "avg_logprob", "compression_ratio", "no_speech_prob")
    for number, segment in enumerate(found, first):
        words = tuple(
            Word(
                word["word"],
                begin + float(word["start"]),
                begin + float(word["end"]),
                word.get("probability"),
            )
            for word in (segment.get("words") or () if with_words else ())
        )
        start = float(segment.get("start") or 0.0)
        yield Segment(
            id=number,
            start=begin + start,
            end=begin + float(segment.get("end") or 0.0),
            text=str(segment.get("text") or ""),
            tokens=tuple(map(int, segment.get("tokens") or ())),
            words=words,
            seek=round(begin * 100) + int(segment.get("seek", start * 100)),
            **{name: float(segment.get(name, 0.0)) for name in figures},
        )
