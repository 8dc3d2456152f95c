"""The defaults of mlx-vlm's pipelines for a model: `python -m pippin.engines.images.defaults FOLDER`.

A server runs this in a process of its own, since mlx-vlm imports MLX. It reads the folder's JSON files and no weights,
and writes `FolderDefaults` as JSON; the exit status is 1 if mlx-vlm does not know the model.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pippin.core.models import FolderDefaults, ImageDefaults

if TYPE_CHECKING:
    from pippin.engines.images.painting import Classes


def find_defaults(folder: Path) -> FolderDefaults | None:
    """Raises what mlx-vlm raises for a folder whose files it cannot read."""
    from pippin.engines.images.painting import find_classes

    found = find_classes(folder)
    if found is None:
        return None
    return FolderDefaults(_of(found, found.generation, folder), _of(found, found.edit, folder))


def _of(classes: "Classes", wanted: Any, folder: Path) -> ImageDefaults | None:
    if wanted is None:
        return None
    found = classes.defaults(wanted, folder)
    return ImageDefaults(found.steps, found.guidance)


def main(folder: Path) -> int:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print what they do
    found = find_defaults(folder)
    if found is None:
        return 1
    answers.write(msgspec.json.encode(found))
    answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
