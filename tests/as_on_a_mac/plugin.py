"""`pytest -p tests.as_on_a_mac.plugin tests/engines/language/step`: these tests as on a Mac.

`--mac 64` chooses the GB of its memory, and `--form 4bit` what its checkpoints are. Tests that ask for equal answers of
two ways of computing are marked `even`, or run with `--even`: one row is rounded as several are. Those marked `float32`
are left out. `--pattern 1` rounds otherwise: a fault is one in every pattern, and a tie in few.
"""

import os
from pathlib import Path
from typing import Any, Final

import pytest

from tests.as_on_a_mac.site import darwin

LEFT_OUT: Final = ("tests/engines/cpu", "tests/engines/language/kernels", "tests/as_on_a_mac")
"""What is about CPUs, and the tests of this emulation itself."""
GPU: Final = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mac", default="16", choices=("16", "64", "128"), help="GB of the Mac's memory")
    forms = ("bfloat16", "4bit", "mxfp4", "mixed")
    parser.addoption("--form", default="bfloat16", choices=forms, help="what its checkpoints are stored in")
    parser.addoption("--even", action="store_true", help="round one row as several")
    parser.addoption("--pattern", type=int, default=0, help="number of the pattern by which it rounds")


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before any module that asks for the Mac when it is imported, as those are that conftests import."""
    darwin.begin()
    chosen = early_config.known_args_namespace
    os.environ[darwin.CHOSEN] = f"{chosen.mac} {chosen.form} {'even' if chosen.even else ''}"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """After `tests/conftest.py`, which chooses the BLAS."""
    from tests.as_on_a_mac.mac import chosen_mac
    from tests.as_on_a_mac.process import take

    mac = chosen_mac()
    assert mac is not None
    config.stash[GPU] = take(mac)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    place = collection_path.relative_to(config.rootpath).as_posix()
    return True if place.startswith(LEFT_OUT) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [each for each in items if each.get_closest_marker("float32") is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [each for each in items if each not in left_out]


@pytest.fixture(autouse=True)
def own_rounding(request: pytest.FixtureRequest) -> None:
    """Each test's rounding is its own, whatever ran before."""
    even = request.config.getoption("--even") or request.node.get_closest_marker("even") is not None
    request.config.stash[GPU].begin(even=even, seed=request.config.getoption("--pattern"))
