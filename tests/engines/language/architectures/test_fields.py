"""A field of config.json that changes what transformers answers changes it here alike, or is refused; a missing
one means here what it means there.

Each field of a tiny checkpoint is changed, or taken away, alone (tests/oracles/fields_oracle.py).
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from pippin.core.errors import ServerError
from tests.engines.language.architectures.test_published import CLOSE, ORACLES, ours, written

__all__ = ["written"]
NAMES = (
    *("afmoe", "apertus", "cohere", "cohere2", "dbrx", "deepseek_v2", "deepseek_v3", "deepseek_v32"),
    *("dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "falcon_h1", "falcon_mamba"),
    *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4_text", "glm4_moe", "gpt2", "gpt_neox"),
    *("gpt_oss", "granite", "granitemoehybrid", "lfm2", "llama", "mamba2", "mistral", "mixtral"),
    *("nemotron_h", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("qwen3_next", "smollm3", "stablelm", "starcoder2"),
)
NO_MODEL_HAS = ("head_dim", "position_embedding_type", "topk_group")
"""Fields whose other values are no model's: no group of experts, half of a turned part, a type that does not exist."""


def verdict(folder: Path, changed: dict[str, Any], expected: np.ndarray, prompt: np.ndarray) -> str:
    (folder / "config.json").write_text(json.dumps(changed))
    try:
        model = ours(folder)
    except ServerError as error:
        told = error.report.message
        return "differs" if "TypeError" in told else told
    found = np.array(model(mx.array(prompt)[None], cache=make_prompt_cache(model))[0])
    return "equal" if np.abs(found - expected).max() < CLOSE * expected.std() else "differs"


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_field_is_honoured_or_refused(
    name: str, written: Path, oracle_python: Path, tmp_path: Path
) -> None:
    made = written / name
    if not (made / "fields.json").exists():
        command = [oracle_python, ORACLES / "fields_oracle.py", written, name]
        subprocess.run(command, check=True, timeout=900)
    for path in made.iterdir():
        if path.name != "config.json":
            (tmp_path / path.name).symlink_to(path)
    prompt, answers = np.load(made / "oracle.npz")["prompt"], np.load(made / "fields.npz")
    fields = json.loads((made / "fields.json").read_text())
    found = {
        each["path"][-1]
        for place, each in enumerate(fields)
        if verdict(tmp_path, each["config"], answers[f"arr_{place}"], prompt) == "differs"
    }
    assert found <= {*NO_MODEL_HAS}
