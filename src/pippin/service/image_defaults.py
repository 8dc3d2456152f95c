"""Steps and guidance of image models where a request leaves them out, found without loading a model."""

import importlib.util
import subprocess
import sys
from functools import cache
from typing import Final, Literal

from pippin.core.decoding import from_json
from pippin.core.errors import ServerError
from pippin.core.models import FolderDefaults, ImageDefaults, ModelInfo

Task = Literal["generate", "edit"]
LIBRARY: Final = "pippin.engines.images.defaults"
SECONDS: Final = 60.0
"""For MLX to import and mlx-vlm to read a model's configuration."""


@cache
def told_of(folder: str) -> FolderDefaults | None:
    """The defaults that mlx-vlm has for a folder; None if it is not installed, or knows none."""
    if importlib.util.find_spec("mlx_vlm") is None:
        return None
    command = [sys.executable, "-m", LIBRARY, folder]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    return from_json(done.stdout, FolderDefaults) if done.returncode == 0 else None


def find_defaults(info: ModelInfo, task: Task) -> ImageDefaults:
    """The defaults of a model. Blocks while a process is asked.

    Raises `ServerError("load_failed")` for a model that is not on the disk or that mlx-vlm does not paint with, and
    `ServerError("invalid_request")` for a task that it cannot do.
    """
    told = told_of(info.path) if info.path else None
    if told is None:
        raise ServerError(
            "load_failed",
            f"Nothing here tells the defaults of {info.id!r}: pull it first, with mlx-vlm installed.",
        )
    found = told.generate if task == "generate" else told.edit
    if found is None:
        why = (
            f"`task` must be edit: {info.id} edits pictures, and makes none without them."
            if task == "generate"
            else f"`task` must be generate: {info.id} edits no pictures."
        )
        raise ServerError("invalid_request", why, "task")
    return found
