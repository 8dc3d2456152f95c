"""The voices in a model's folder, and a client's name of a voice in the form that the model takes.

A client's name of a voice must never reach a model unchecked: several of mlx-audio's models take a name that ends like
a file name for a path, and one that begins like an address for something to fetch.
"""

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pippin.core.errors import ServerError
from pippin.core.published import object_in

FOLDERS: Final = ("voices", "voice_embedding", "embeddings")
SUFFIXES: Final = (".safetensors", ".npz", ".json", ".wav")
NAME: Final = re.compile(r"[^\W_][^/\\:~\x00-\x1f]{0,127}")
"""A word for a voice of a model that has no list of them: nothing that could be a path or an address."""
RECORDING: Final = ".wav"
BLENDS: Final = ("kokoro",)
"""Families that mix several voices, whose names are separated by commas."""
FETCHES_VOICES: Final = ("kokoro",)
"""Families that ask the Hub for a voice that is not in the folder."""
TAKES_FILES: Final = ("outetts",)
"""Families that take the path of a voice's file, and not its name."""


@dataclass(frozen=True)
class FolderVoices:
    """The voices of one model. `files` holds those that are a file each, by name."""

    model: str
    family: str | None
    names: tuple[str, ...]
    files: dict[str, Path]

    def checked(self, voice: str) -> str:
        """The model's own spelling of a client's word. Raises `ServerError` for what is no voice of this model."""
        parts = voice.split(",") if self.family in BLENDS else [voice]
        return ",".join(self._one(part.strip()) for part in parts)

    def _one(self, voice: str) -> str:
        if self.names:
            same = [name for name in self.names if name.casefold() == voice.casefold()]
            if not same:
                message = f"voice is {voice!r}; {self.model} has {', '.join(self.names)}."
                raise ServerError("invalid_request", message, "voice")
            return voice if voice in same else same[0]
        if self.family in FETCHES_VOICES:
            message = f"voice is {voice!r}; no voice lies in the folder of {self.model}."
            raise ServerError("invalid_request", message, "voice")
        if NAME.fullmatch(voice) is None or voice.lower().endswith(SUFFIXES):
            raise ServerError(
                "invalid_request",
                "voice is a name, and not a path or an address; send a recording to imitate in `ref_audio`.",
                "voice",
            )
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
    family = config.get("model_type") or ("kokoro" if "istftnet" in config else None)
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
    yield from _keys(config.get("voice_aliases"))


def _configured(config: dict[str, Any]) -> Iterator[str]:
    """The names of MeloTTS, of Rumik, and of Qwen3-TTS."""
    yield from _keys(config.get("spk2id"))
    speakers = config.get("speakers")
    if isinstance(speakers, list):
        yield from (name for name in speakers if isinstance(name, str))
    talker = config.get("talker_config")
    yield from _keys(talker.get("spk_id") if isinstance(talker, dict) else None)


def _keys(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        yield from (name for name in found if isinstance(name, str))
