"""What a rank keeps of a model, seen without the others: parts that send nothing."""

from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_model

from pippin.core.errors import ServerError
from pippin.engines.language.ranks.opening import split_model
from tests.engines.tiny_models import tiny_model


class Group:
    """A rank of a group, as far as a split asks; nothing of it is computed."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def loaded(folder: Path, architecture: str = "llama", **changes: Any) -> Any:
    model, _ = load_model(tiny_model(architecture, folder, **changes))
    return model


@pytest.mark.parametrize(
    ("architecture", "ranks", "words"),
    [
        ("llama", 3, "which 3 ranks cannot share evenly.*Take another number of --ranks"),
        ("gemma3_text", 2, "mlx-lm cannot split the layers of this architecture.*Start it on one machine"),
    ],
)
def test_heads_that_cannot_be_shared_out_are_refused(
    tmp_path: Path, architecture: str, ranks: int, words: str
) -> None:
    with pytest.raises(ServerError, match=words):
        split_model(loaded(tmp_path, architecture), Group(0, ranks))  # type: ignore[arg-type]
