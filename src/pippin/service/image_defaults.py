"""Steps and guidance of image models where a request leaves them out, found without loading a model."""

import importlib.util
import subprocess
import sys
import threading
from typing import Final, Literal

from pippin.core.decoding import from_json
from pippin.core.errors import ServerError
from pippin.core.image_presets import ImageDefaults, ImagePreset, LibraryDefaults, preset_of
from pippin.core.models import ModelInfo

Task = Literal["generate", "edit"]
LIBRARY: Final = "pippin.engines.images.defaults"
SECONDS: Final = 60.0
"""For MLX to import and mlx-vlm to read a model's configuration."""


class ImageDefaultsReader:
    """Knows mflux's presets, and asks mlx-vlm once per folder."""

    def __init__(self) -> None:
        self._told: dict[str, LibraryDefaults | None] = {}
        self._asking = threading.Lock()

    def find(self, info: ModelInfo, config_name: str | None, task: Task) -> ImageDefaults:
        """The defaults of the library that runs this model. Blocks while a process is asked.

        Raises `ServerError("load_failed")` if neither the operator nor the model identifies the image model, and
        `ServerError("invalid_request")` for a task that it cannot do.
        """
        try:
            preset: ImagePreset | ServerError = preset_of(info, config_name)
        except ServerError as error:
            preset = error
        by_preset = isinstance(preset, ImagePreset) and (_installed("mflux") or config_name is not None)
        if not by_preset and config_name is None and info.path and (told := self._ask(info.path)) is not None:
            found = told.generate if task == "generate" else told.edit
            if found is None:
                raise _other_task(info, task)
            return found
        if isinstance(preset, ServerError):
            raise preset
        if preset.edits and task == "generate":
            raise _other_task(info, task)
        return ImageDefaults(preset.steps, preset.guidance)

    def _ask(self, folder: str) -> LibraryDefaults | None:
        with self._asking:
            if folder not in self._told:
                self._told[folder] = _told_of(folder) if _installed("mlx_vlm") else None
            return self._told[folder]


def _other_task(info: ModelInfo, task: Task) -> ServerError:
    if task == "generate":
        why = f"`task` must be edit: {info.id} edits pictures, and makes none without them."
    else:
        why = f"`task` must be generate: {info.id} edits no pictures."
    return ServerError("invalid_request", why, "task")


def _told_of(folder: str) -> LibraryDefaults | None:
    command = [sys.executable, "-m", LIBRARY, folder]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    return from_json(done.stdout, LibraryDefaults) if done.returncode == 0 else None


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
