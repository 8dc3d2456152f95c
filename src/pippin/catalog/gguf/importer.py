"""Imports a GGUF file as an MLX model folder, whole or not at all."""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from pippin.catalog.gguf.conversion import Conversion, Progress
from pippin.catalog.gguf.reader import GgufFile
from pippin.catalog.gguf.weights import DenseType
from pippin.catalog.info import read_info
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def import_gguf(
    path: Path,
    destination_root: Path,
    name: str,
    progress: Progress | None = None,
    *,
    dense_type: DenseType | None = None,
) -> ModelInfo:
    """Write the model in the GGUF file `path` to the folder `destination_root / name`.

    `dense_type` is what K-quants are rounded to: bfloat16 for Gemma, whose activations outgrow float16, else
    float16. Holds one tensor in memory at a time. Raises `ServerError`, and then leaves nothing behind.
    """
    if NAME.fullmatch(name) is None:
        raise ServerError(
            "invalid_request",
            "A model's name begins with a letter or digit and holds only letters, digits, '.', '_' and '-'.",
            "name",
        )
    folder = destination_root / name
    if folder.exists():
        raise ServerError("conflict", f"A model called {name} is there already. Give another name.", "name")
    with GgufFile(path) as file:
        conversion = Conversion(file, dense_type)
        destination_root.mkdir(parents=True, exist_ok=True)
        conversion.check_room(destination_root)
        partial = Path(tempfile.mkdtemp(prefix=".import-", dir=destination_root))
        try:
            conversion.write(partial, progress or (lambda done, total, what: None))
            partial.chmod(0o755)
            partial.rename(folder)
        except OSError as error:
            raise ServerError(
                "invalid_request", f"Cannot write the model {name}: {error.strerror}."
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return read_info(folder)
