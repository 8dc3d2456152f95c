"""Compares an imported model with the golden data of its oracle."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LOGIT_TOLERANCE = 6e-5


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
    command = [sys.executable, str(ROOT / "tests/oracles/mlx_forward.py"), str(folder)]
    ran = subprocess.run(command, input=json.dumps(expected["continuations"]), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    worst = 0.0
    for wanted, found in zip(expected["continuations"], json.loads(ran.stdout), strict=True):
        assert found["greedy"] == wanted["greedy"], wanted["prompt"]
        worst = max(worst, float(np.abs(np.subtract(found["top_logits"], wanted["top_logits"])).max()))
    assert worst <= tolerance
    return worst
