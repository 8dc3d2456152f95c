"""Loads a speech model by mlx-audio, whose codec or tokenizer may lie in a repository of its own."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import huggingface_hub
import huggingface_hub.constants
from huggingface_hub.errors import LocalEntryNotFoundError

from pippin.core.errors import ServerError
from pippin.core.models import Companion, ModelInfo
from pippin.core.published import object_in
from pippin.engines.refusals import missing_package

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
    with _offline() if missing else nullcontext():
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


@contextmanager
def _offline() -> Iterator[None]:
    """Restrict the Hub's client to what its cache has."""
    before = huggingface_hub.constants.HF_HUB_OFFLINE
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = before


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
