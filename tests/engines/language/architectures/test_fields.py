"""A field of config.json that changes what transformers answers changes it here alike, or is refused.

Each field of each tiny checkpoint is changed alone (tests/oracles/fields_oracle.py).
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pippin.core.errors import ServerError
from tests.engines.language.architectures.test_published import CLOSE, ORACLES, VERDICTS, ours, written

__all__ = ["written"]
KNOWN: dict[str, str] = json.loads(VERDICTS.read_text("utf-8"))
NAMES = [name for name, own in KNOWN.items() if own in ("equal", "mended")]


def verdict(folder: Path, changed: dict[str, Any], expected: np.ndarray, prompt: np.ndarray) -> str:
    (folder / "config.json").write_text(json.dumps(changed))
    try:
        model = ours(folder)
        found = np.array(model(mx.array(prompt)[None])[0])
    except ServerError as error:
        return f"refused: {error.report.message}"
    return "equal" if np.abs(found - expected).max() < CLOSE * expected.std() else "differs"


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_field_is_honoured_or_refused(
    name: str, written: Path, oracle_python: Path, tmp_path: Path
) -> None:
    made = written / name
    if not (made / "fields.json").exists():
        subprocess.run([oracle_python, ORACLES / "fields_oracle.py", written, name], check=True, timeout=900)
    for path in made.iterdir():
        if path.name != "config.json":
            (tmp_path / path.name).symlink_to(path)
    prompt = np.load(made / "oracle.npz")["prompt"]
    answers = np.load(made / "fields.npz")
    fields = json.loads((made / "fields.json").read_text())
    found = {
        ".".join(each["path"]): verdict(tmp_path, each["config"], answers[f"arr_{place}"], prompt)
        for place, each in enumerate(fields)
    }
    if log := os.environ.get("PIPPIN_FIELDS_LOG"):
        with Path(log).open("a") as file:
            file.write(json.dumps({name: found}) + "\n")
    assert {field for field, own in found.items() if own == "differs"} == set()
