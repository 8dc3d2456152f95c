"""Fixtures of the tests of engines: tiny models, and MLX as it is in a worker."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # it imports mlx
    from tests.engines.tiny_models import TinyModels


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> "TinyModels":
    """Folders of tiny models, which tests read and do not write into."""
    from tests.engines.tiny_models import TinyModels

    return TinyModels(tmp_path_factory.mktemp("tiny-models"))


@pytest.fixture(scope="session", autouse=True)
def uncompiled() -> None:
    """As in a worker on a CPU: there MLX compiles with a C++ compiler, which takes a second for each function."""
    core = sys.modules.get("mlx.core")
    if core is not None and core.default_device().type == core.cpu:
        core.disable_compile()


@pytest.fixture(autouse=True)
def functions_of_mlx() -> Iterator[None]:
    """`mlx.core` has its own functions, whatever an engine of another test has put there (`engines/cpu/functions`)."""
    put_own_functions_back()
    yield
    put_own_functions_back()


def put_own_functions_back() -> None:
    core = sys.modules.get("mlx.core")
    for module in () if core is None else (core, core.fast):
        names = vars(module)
        names.update({name: found.own for name, found in names.items() if hasattr(found, "own")})
