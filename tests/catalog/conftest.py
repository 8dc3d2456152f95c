"""The environment that the long tests find their references in."""

import os
from pathlib import Path

import pytest

from tests.catalog.gguf_golden import ROOT


@pytest.fixture(scope="session")
def oracle_python() -> Path:
    """The Python of an environment with tests/oracles/requirements.txt."""
    path = Path(os.environ.get("PIPPIN_ORACLE_PYTHON", ROOT / ".cache" / "oracle" / "bin" / "python"))
    if not path.is_file():
        pytest.fail(
            f"There is no {path}: make it with tests/oracles/requirements.txt installed.", pytrace=False
        )
    return path
