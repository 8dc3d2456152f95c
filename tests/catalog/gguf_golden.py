"""Compares an imported model with the golden data of its oracle."""

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LOGIT_TOLERANCE = 1.5e-4  # float32 sums in another order; the largest seen is 7.5e-5


def golden(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "tests" / "data" / f"{name}.json").read_text())
    return document


def check_tokens(folder: Path, expected: dict[str, Any]) -> None:
    """Ids from tokenizer.json alone, as the tokenizers library reads it."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for item in expected["corpus"]:
        assert tokenizer.encode(item["text"]).ids == item["ids"], item["text"]


def check_continuations(folder: Path, expected: dict[str, Any], tolerance: float = LOGIT_TOLERANCE) -> float:
    """The largest difference of logits, after all greedy tokens have been found equal."""
    worst = 0.0
    for wanted, found in zip(
        expected["continuations"], mlx_forward(folder, expected["continuations"]), strict=True
    ):
        assert found["greedy"] == wanted["greedy"], wanted["prompt"]
        worst = max(worst, float(np.abs(np.subtract(found["top_logits"], wanted["top_logits"])).max()))
    assert worst <= tolerance
    return worst


def mlx_forward(folder: Path, sequences: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What mlx-lm computes in float32, in a process of its own."""
    command = [sys.executable, str(ROOT / "tests/oracles/mlx_forward.py"), str(folder)]
    with tempfile.TemporaryDirectory() as libraries:
        environment = os.environ | {
            "LD_LIBRARY_PATH": _gfortran(Path(libraries)),
            "OPENBLAS_NUM_THREADS": "1",
        }
        ran = subprocess.run(
            command, input=json.dumps(sequences), capture_output=True, text=True, env=environment
        )
    assert ran.returncode == 0, ran.stderr
    answers: list[dict[str, Any]] = json.loads(ran.stdout)
    return answers


def _gfortran(folder: Path) -> str:
    """Folders in which OpenBLAS finds libgfortran.so.5, which mlx-cpu ships under another name."""
    try:
        bundled = [file for file in files("mlx-cpu") or [] if file.name.startswith("libgfortran")]
    except PackageNotFoundError:
        return ""
    for file in bundled:
        library = Path(str(file.locate()))
        (folder / "libgfortran.so.5").symlink_to(library)
        return f"{folder}:{library.parent}"
    return ""
