"""A model of mlx-audio, whose codec or tokenizer may lie in a repository of its own, its voices, and a request for
speech, from its check to encoded sound."""

import json
import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import huggingface_hub
import huggingface_hub.constants
import mlx.core as mx
import numpy as np
from huggingface_hub.errors import LocalEntryNotFoundError
from msgspec import Struct

from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, SpeechChunk, Spoken, Usage, Voices
from pippin.core.models import Companion, ModelInfo, WorkerSpec
from pippin.core.published import object_in, table
from pippin.core.tasks import ListVoices, Speak, Task
from pippin.engines import sound
from pippin.engines.base import Job, LoadProgress, NeedsWeightsError, Preparer
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call
from pippin.engines.encoding import cast_weights
from pippin.engines.language.upstream.classes import replaced
from pippin.engines.refusals import library_refusals, missing_package, refused
from pippin.engines.speech.keywords import Keywords, arguments_of, keywords_of

NAMES_A_TOKENIZER: Final = ("llama", "qwen2", "qwen3", "outetts", "indextts")
"""Families whose configuration names the tokenizer, which they fetch even if it lies beside the weights."""

TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


def load_speaker(info: ModelInfo) -> Any:
    """mlx-audio's model. Raises `ServerError("load_failed")`, which names what is missing.

    mlx-audio decides whether a model can be loaded: what Pippin knows of other repositories only explains a failed
    load. Only what mlx-audio would miss later is refused before.
    """
    missing = [each for each in info.companions if each.needed and not _is_here(each)]
    if any(each.missed_late for each in missing):
        raise _incomplete(info, missing)
    # What is missing was not allowed to be fetched, or could not be; mlx-audio must not fetch it either.
    offline = (huggingface_hub.constants, "HF_HUB_OFFLINE", lambda _: True)
    with replaced(offline) if missing else nullcontext():
        try:
            return _loaded(info)
        except Exception as error:
            if missing and not isinstance(error.__cause__, ImportError):
                raise _incomplete(info, missing) from error
            raise


def _loaded(info: ModelInfo) -> Any:
    from mlx_audio.tts.utils import load_model

    with _naming_its_tokenizer(Path(info.path or ""), info.id) as folder:
        try:
            return load_model(folder)
        except ValueError as error:
            raise ServerError("load_failed", f"mlx-audio can't speak with {info.id}: {error}") from error
        except ImportError as error:
            raise missing_package(error) from error


def _incomplete(info: ModelInfo, missing: list[Companion]) -> ServerError:
    which = " and ".join(each.repository for each in missing)
    return ServerError(
        "load_failed",
        f"{info.id} needs {which} beside its own files, which {'are' if len(missing) > 1 else 'is'} not on this "
        f"machine. `pippin pull {info.path or info.id}` fetches what is missing.",
    )


def _is_here(companion: Companion) -> bool:
    """Whether a repository's files lie in the cache of the Hub: at least one of the first pattern."""
    try:
        folder = huggingface_hub.snapshot_download(companion.repository, local_files_only=True)
    except (LocalEntryNotFoundError, OSError):
        return False
    return any(Path(folder).rglob(companion.files[0]))


@contextmanager
def _naming_its_tokenizer(folder: Path, name: str) -> Iterator[Path]:
    """The folder, or a folder of links to its files whose configuration names the tokenizer in it. Needed while the
    model is loaded."""
    config = object_in(folder / "config.json")  # the load reports what is wrong
    has_own = any((folder / name).is_file() for name in TOKENIZERS)
    if config.get("model_type") not in NAMES_A_TOKENIZER or not has_own:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="pippin-speech-") as made:
        # The name tells mlx-audio the family, where a configuration says no more than `llama`.
        view = Path(made) / name.rpartition("/")[2]
        view.mkdir()
        for each in folder.iterdir():
            if each.name != "config.json":
                (view / each.name).symlink_to(each.resolve())
        (view / "config.json").write_text(json.dumps({**config, "tokenizer_name": str(folder.resolve())}))
        yield view


FOLDERS: Final = ("voices", "voice_embedding", "embeddings")
SUFFIXES: Final = (".safetensors", ".npz", ".json", ".wav")
NAME: Final = re.compile(r"[^\W_][^/\\:~\x00-\x1f]{0,127}")
"""A word for a voice of a model that has no list of them: nothing that could be a path or an address."""
KOKORO: Final = "kokoro"
"""The family that mixes several voices, with commas between their names, and fetches one that its folder lacks."""


class FolderVoices(Struct, frozen=True):
    """The voices of one model. `files` holds those that are a file each, by name.

    A client's name of a voice must never reach a model unchecked: several of mlx-audio's models take a name that ends
    like a file name for a path, and one that begins like an address for something to fetch.
    """

    model: str
    family: str | None
    names: tuple[str, ...]
    files: dict[str, Path]

    def checked(self, voice: str) -> str:
        """The model's own spelling of a client's word. Raises `ServerError` for what is no voice of this model."""
        parts = voice.split(",") if self.family == KOKORO else [voice]
        return ",".join(self._one(part.strip()) for part in parts)

    def _one(self, voice: str) -> str:
        if self.names:
            same = [name for name in self.names if name.casefold() == voice.casefold()]
            if not same:
                raise refused("voice", f"is {voice!r}; {self.model} has {', '.join(self.names)}.")
            return voice if voice in same else same[0]
        if self.family == KOKORO:
            raise refused("voice", f"is {voice!r}; no voice lies in the folder of {self.model}.")
        if NAME.fullmatch(voice) is None or voice.lower().endswith(SUFFIXES):
            path = "is a name, and not a path or an address; send a recording to imitate in `ref_audio`."
            raise refused("voice", path)
        return voice


def voices_of(folder: Path, model: str) -> FolderVoices:
    """The voices of a model: a file each in one of `FOLDERS`, arrays of an archive, or names in its configuration."""
    config = object_in(folder / "config.json")  # loading the model reports what is wrong
    files = {
        path.stem: path
        for name in FOLDERS
        for path in sorted((folder / name).glob("*"))
        if path.suffix in SUFFIXES
    }
    family = config.get("model_type") or (KOKORO if "istftnet" in config else None)
    names = {*files, *_archived(folder, config), *_configured(config)}
    if not names and (family == "pocket_tts" or {"flow_lm", "mimi"} <= config.keys()):
        from mlx_audio.tts.models.pocket_tts.utils import PREDEFINED_VOICES

        names = set(PREDEFINED_VOICES)  # which lie in a repository of their own
    return FolderVoices(model, family, tuple(sorted(names)), files)


def _archived(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """The names of KittenTTS: arrays of `voices.npz`, and others that its configuration has for them."""
    path = folder / Path(str(config.get("voices_path") or "voices.npz")).name
    if not path.is_file():
        return
    try:
        with zipfile.ZipFile(path) as archive:
            yield from (name.removesuffix(".npy") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return
    yield from table(config.get("voice_aliases"))


def _configured(config: dict[str, Any]) -> Iterator[str]:
    """The names of MeloTTS, of Rumik, and of Qwen3-TTS."""
    yield from table(config.get("spk2id"))
    speakers = config.get("speakers")
    if isinstance(speakers, list):
        yield from (name for name in speakers if isinstance(name, str))
    yield from table(table(config.get("talker_config")).get("spk_id"))


RATE = 24000
"""Samples a second of a recording to imitate, for most models."""

REFERENCE_SECONDS = 60.0
"""The longest recording of a voice to imitate."""


class SpeechModel(Struct, frozen=True):
    """A loaded model, and the keywords that it uses."""

    library: Any
    keywords: Keywords


class SpeechPreparer:
    """Checks the fields of a speech request, and decodes the recording of a voice to imitate."""

    def __init__(self, spec: WorkerSpec) -> None:
        sound.require_extra()
        self.info: ModelInfo = spec.info
        self._voices = voices_of(Path(self.info.path or ""), self.info.id)
        self.rate: int | None = None  # the loaded model's

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        if isinstance(task, ListVoices):
            return (Voices(self._voices.names),)
        assert isinstance(task, Speak)
        name = "" if task.voice is None else self._voices.checked(task.voice)
        path = self._voices.files.get(name)
        recording = path if path is not None and path.suffix == ".wav" else None
        # Which takes the path of a voice's file, and not its name.
        takes_file = path is not None and self._voices.family == "outetts"
        voice = None if recording else str(path) if takes_file else name or None
        call = partial(speak, task, voice, self._reference(task, recording))
        return BlockingJob[SpeechModel](id, Accepted(len(task.text)), call)

    def _reference(self, task: Speak, recording: Path | None) -> sound.Samples | None:
        """The client's recording of a voice, or that of a voice in the model's folder, at the rate at which the model
        speaks, as in mlx-audio. Raises `ServerError` naming it."""
        if task.reference_audio is not None:
            data, param = task.reference_audio, "ref_audio"
        elif recording is not None:
            data, param = recording.read_bytes(), "voice"
        else:
            return None
        if self.rate is None:
            raise NeedsWeightsError
        return sound.decode(data, self.rate, param=param, longest=REFERENCE_SECONDS)


open_preparer = SpeechPreparer


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> BlockingEngine[SpeechModel]:
    assert isinstance(preparer, SpeechPreparer)

    def load() -> SpeechModel:
        model = load_speaker(spec.info)
        cast_weights(model, spec)
        preparer.rate = int(getattr(model, "sample_rate", None) or RATE)
        return SpeechModel(model, keywords_of(model))

    return BlockingEngine(load)


def speak(
    task: Speak, voice: str | None, reference: sound.Samples | None, model: SpeechModel, call: Call
) -> None:
    """Run a request on the model's thread: samples from the model, encoded piece by piece as they come."""
    encoder: sound.SpeechEncoder | None = None
    rate, spoken, tokens = 0, 0, 0
    heard = None if reference is None else mx.array(reference)
    for piece, rate, count in _pieces(model.library, task, arguments_of(model.keywords, task, voice, heard)):
        call.check()
        tokens += count
        if not piece.size:  # which the encoders refuse
            continue
        encoder = encoder or sound.SpeechEncoder(task.format, rate)
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
