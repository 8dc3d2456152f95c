"""The defaults of mlx-vlm's pipelines for a model: `python -m pippin.engines.images.defaults FOLDER`.

A server runs this in a process of its own, since mlx-vlm imports MLX. It reads the folder's JSON files and no weights,
and writes `FolderDefaults` as JSON; the exit status is 1 if mlx-vlm does not know the model.
"""

import os
import sys
from pathlib import Path

import msgspec

from pippin.core.models import FolderDefaults, ImageDefaults
from pippin.engines.images.painting import find_classes


def find_defaults(folder: Path) -> FolderDefaults | None:
    """Raises what mlx-vlm raises for a folder whose files it cannot read."""
    found = find_classes(folder)
    if found is None:
        return None
    of = [None if each is None else found.defaults(each, folder) for each in (found.generation, found.edit)]
    return FolderDefaults(
        *(None if each is None else ImageDefaults(each.steps, each.guidance) for each in of)
    )


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
