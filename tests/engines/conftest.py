"""Products run on the accelerated BLAS, as in a worker: it must be in the process before mlx is."""

from typing import TYPE_CHECKING

import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas

if TYPE_CHECKING:  # it imports mlx
    from tests.engines.tiny_models import TinyModels

accelerate_blas(ModelOptions(), 2)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> "TinyModels":
    """Folders of tiny models, which tests read and do not write into."""
    from tests.engines.tiny_models import TinyModels

    return TinyModels(tmp_path_factory.mktemp("tiny-models"))
