"""What a worker takes for granted of every kind of model."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pippin

KINDS = ("language", "embeddings", "reranking", "transcription", "speech", "images", "scripted")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_its_two_doors(kind: str) -> None:
    module = importlib.import_module(f"pippin.engines.{kind}")
    assert callable(module.open_preparer)
    assert callable(module.open_engine)


def test_language_models_are_imported_when_they_are_opened_and_not_before() -> None:
    """The accelerated BLAS goes into the process before mlx does, and a tokenizer needs none."""
    program = (
        "import sys, pippin.engines.language\n"
        "assert not {'mlx', 'mlx_lm.models', 'transformers'} & set(sys.modules)\n"
        "import pippin.engines.language.step.engine\n"
        "assert 'mlx.core' in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(pippin.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
