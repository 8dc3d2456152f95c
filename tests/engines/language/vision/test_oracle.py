"""Logits are those of the reference implementation, from weights in its own names."""

import subprocess
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = ROOT / "tests/oracles/vision_logits.py"
QUESTION = "Which is larger, and which one is left of the other?"


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "idefics3", "pixtral", "mistral3"])
def test_logits_equal_those_of_transformers(family: str, tmp_path: Path, oracle_python: Path) -> None:
    folder = tiny_vision_model(family, tmp_path / family)
    shown = [picture(60, 28, 1), picture(20, 52, 2)]
    if family in ("pixtral", "mistral3"):  # there pictures of unlike sizes are no one array
        shown.pop()
    job = VisionBench(folder).job("a", *shown, QUESTION)
    assert job.media is not None
    names = {name for placed in job.media.placed for name in placed.medium.arrays}
    arrays = {name: job.media.gathered(name) for name in names}
    inputs, expected = tmp_path / "inputs.npz", tmp_path / "logits.npy"
    if family.startswith("qwen"):
        kinds = np.zeros((1, len(job.prompt)), np.int64)
        kinds[0, [position for placed in job.media.placed for position in placed.positions]] = 1
        arrays["mm_token_type_ids"] = kinds
    np.savez(inputs, input_ids=np.array([job.prompt]), **arrays)
    command = [str(oracle_python), str(SCRIPT), str(folder), str(inputs), str(expected)]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=110)

    bench = VisionBench(folder)
    sight = bench.engine.vision
    assert sight is not None
    viewing = sight.open(job.prompt, job.media)
    while (medium := viewing.missing(0, len(job.prompt))) is not None:
        viewing.compute(medium, wait=True)
    logits = bench.model(
        mx.array([job.prompt]), bench.model.make_cache(), inputs=viewing.inputs(job.prompt, 0)
    )
    np.testing.assert_allclose(np.array(logits[0]), np.load(expected), atol=2e-4)
