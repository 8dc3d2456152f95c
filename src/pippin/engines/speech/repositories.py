"""Loads a speech model by mlx-audio, whose codec or tokenizer may lie in a repository of its own."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import huggingface_hub
from huggingface_hub.errors import LocalEntryNotFoundError

from pippin.core.decoding import from_json
from pippin.core.errors import ServerError
from pippin.core.models import Companion, ModelInfo
from pippin.engines.refusals import missing_package

NAMES_A_TOKENIZER: Final = ("llama", "qwen2", "qwen3", "outetts", "indextts")
"""Families whose configuration names the tokenizer, which they fetch even where it lies beside the weights."""

TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")


def load_speaker(info: ModelInfo) -> Any:
    """mlx-audio's model. Raises `ServerError("load_failed")`, which names what is missing."""
    from mlx_audio.tts.utils import load_model

    require_companions(info)
    with _naming_its_tokenizer(Path(info.path or ""), info.id) as folder:
        try:
            return load_model(folder)
        except ValueError as error:
            raise ServerError("load_failed", f"mlx-audio can't speak with {info.id}: {error}") from error
        except ImportError as error:
            raise missing_package(error) from error


def require_companions(info: ModelInfo) -> None:
    """Raises `ServerError("load_failed")` that names the repositories that a model needs and that are not here."""
    missing = [each.repository for each in info.companions if each.needed and not _is_here(each)]
    if missing:
        which = " and ".join(missing)
        raise ServerError(
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
    """The folder, or one of links to its files whose configuration names the tokenizer in it. It is needed while the
    model is loaded."""
    try:
        config = from_json((folder / "config.json").read_bytes(), dict[str, Any])
    except (OSError, ValueError):  # of which the load says more
        config = {}
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
