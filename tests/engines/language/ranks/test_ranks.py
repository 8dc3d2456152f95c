"""Groups of ranks on loopback say what one rank says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pippin.core.models import ModelInfo, WorkerSpec
from pippin.runtime.ranks.places import places
from tests.engines.language.ranks.rank_run import Plan, Said
from tests.engines.tiny_models import tiny_model

ROOT = Path(__file__).resolve().parents[4]
SECONDS = 900
WITHIN = 1e-4  # of logprobs
TIE = 1e-3
WIDE: dict[str, Any] = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "num_hidden_layers": 3,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": WIDE,
    "qwen3": WIDE,
    "qwen3_moe": {**WIDE, "moe_intermediate_size": 48},
    "gpt_oss": {**WIDE, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "qwen3_5": {**WIDE, "num_hidden_layers": 4},
}


def alone(folders: list[Path], output: Path) -> dict[str, Said]:
    """What one process says with each model, by its folder."""
    return run(Plan([*map(str, folders)], [], str(output)), output)


def together(folders: list[Path], ranks: int, output: Path) -> dict[str, Said]:
    """What a group of `ranks` says with each model."""
    found = places(WorkerSpec(info=ModelInfo(id="tiny", kind="language"), options={"ranks": ranks}))
    return run(Plan([*map(str, folders)], found, str(output)), output)


def run(plan: Plan, output: Path) -> dict[str, Said]:
    written = output.with_suffix(".plan")
    written.write_bytes(msgspec.json.encode(plan))
    command = [sys.executable, "-m", "tests.engines.language.ranks.rank_run", str(written)]
    processes = [
        subprocess.Popen(
            [*command, str(rank)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(max(1, len(plan.ranks)))
    ]
    try:
        errors = [process.communicate(timeout=SECONDS)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert output.exists(), "\n".join(errors)
    return dict(json.loads(output.read_text()))


def compare(one: Said, several: Said) -> None:
    """The same tokens, with the same logprobs, as far as two tokens do not tie."""
    assert one.keys() == several.keys()
    for name, said in one.items():
        if name == "preempted" or name.endswith(" cached"):
            assert said == several[name], name
            continue
        assert len(said) == len(several[name]) >= 6, name
        for (token, logprob, tops), (other, theirs, their_tops) in zip(said, several[name], strict=True):
            if token != other:
                assert abs(logprob - theirs) < TIE, name
                break
            assert abs(logprob - theirs) < WITHIN, name
            for (_, mine), (_, yours) in zip(tops, their_tops, strict=True):
                assert abs(mine - yours) < WITHIN, name


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_say_what_one_says(ranks: int, tmp_path: Path) -> None:
    folders = [tiny_model(name, tmp_path / name, **changes) for name, changes in MODELS.items()]
    said = together(folders, ranks, tmp_path / "said.json")
    known = alone(folders, tmp_path / "alone.json")
    for folder in folders:
        expected = known[str(folder)]
        assert expected["preempted"]
        assert expected["long again cached"] > 0
        compare(expected, said[folder.name])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_demo_model_in_parts_answers_as_one(demo_model: Path, tmp_path: Path) -> None:
    said = together([demo_model], 3, tmp_path / "said.json")
    [expected] = alone([demo_model], tmp_path / "alone.json").values()
    compare(expected, said[demo_model.name])
