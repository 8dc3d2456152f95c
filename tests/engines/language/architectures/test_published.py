"""Each architecture answers as transformers does, from checkpoints that it saves: see tests/oracles/text.yaml. The
kernels for CPUs are compared too, where they are there.

`PIPPIN_ORACLE_WRITE=1` writes the verdicts anew, from which docs/engine.md has its table.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import yaml
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import _get_classes, load_model
from msgspec.structs import replace

from pippin.catalog.info import read_info
from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.language.model.weights import Reading, load_weights
from pippin.engines.language.upstream.mends import Arguments
from pippin.engines.language.upstream.rotary import SERVED
from tests.engines.language.bench import PLAN, Bench, run_all

# The first test of all writes the checkpoints.
pytestmark = pytest.mark.timeout(600)
ORACLES = Path(__file__).parents[3] / "oracles"
VERDICTS = ORACLES / "text_verdicts.json"
SETTINGS = yaml.safe_load((ORACLES / "text.yaml").read_text("utf-8"))
NAMES = [
    *SETTINGS["checkpoints"],
    *(f"{kind}-{each}" for each in ("scaled", "older") for kind in SETTINGS[each]),
]
CLOSE = 1e-4  # of the logits' standard deviation
CUT = 23  # the prompt is computed in two parts


@pytest.fixture(scope="module")
def written(oracle_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all checkpoints and what transformers answers."""
    folder = Path(os.environ.get("PIPPIN_ORACLE_FOLDER", tmp_path_factory.mktemp("oracle")))
    if not any(folder.iterdir()):
        command = [str(oracle_python), str(ORACLES / "text_oracle.py"), str(folder)]
        subprocess.run(command, check=True, timeout=1500)
    return folder


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, str]]:
    """What is known; what is found anew is kept if it is asked for."""
    found = json.loads(VERDICTS.read_text("utf-8")) if VERDICTS.exists() else {}
    yield found
    if os.environ.get("PIPPIN_ORACLE_WRITE"):
        kept = {name: found[name] for name in sorted(found) if name in NAMES}
        VERDICTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")


def ours(folder: Path, *, kernels: bool = False) -> nn.Module:
    info = ModelInfo(id="tiny", kind="language", path=str(folder), architecture=folder.name)
    plan = replace(PLAN, kernels=kernels)
    return load_weights(info, plan, lambda *_: None, kernel_threads=1)[0]


def theirs(folder: Path) -> nn.Module:
    """mlx-lm's own, by a configuration in the spelling that it reads."""

    def spelled(config: dict[str, Any]) -> tuple[Any, Any]:
        kind, arguments = _get_classes(config)
        return kind, Arguments(arguments)

    model: nn.Module = load_model(folder, get_model_classes=spelled)[0]
    return model


def difference(model: Any, oracle: Any) -> float:
    """The largest of logits, in standard deviations; infinite where a greedy token is another one."""
    prompt, expected, answer = mx.array(oracle["prompt"])[None], oracle["logits"], oracle["answer"]
    whole = np.array(model(prompt, cache=make_prompt_cache(model))[0])
    cache = make_prompt_cache(model)
    model(prompt[:, :CUT], cache=cache)
    row = model(prompt[:, CUT:], cache=cache)[0, -1]
    apart = max(np.abs(whole - expected).max(), np.abs(np.array(row) - expected[-1]).max())
    for token in answer.tolist():
        if row.argmax().item() != token:
            return float("inf")
        row = model(mx.array([[token]]), cache=cache)[0, -1]
    return float(apart / expected.std())


def found(load: Callable[[Path], Any], folder: Path) -> str:
    """Whether what was loaded from a folder answers as transformers does."""
    try:
        model = load(folder)
    except ServerError as error:
        return f"refused: {error.report.message}"
    return "equal" if difference(model, np.load(folder / "oracle.npz")) < CLOSE else "differs"


def defaults(folder: Path) -> dict[str, Any]:
    """What a request that says nothing is sampled with, under transformers' names."""
    found = read_info(folder).sampling
    return {name: getattr(found, name) for name in SETTINGS["generation"] if hasattr(found, name)}


def verdict(folder: Path) -> str:
    if not (folder / "oracle.npz").exists():
        return "transformers fails"
    assert defaults(folder).items() <= SETTINGS["generation"].items()
    own = found(ours, folder)
    if own == "equal" and why_missing() is None:
        own = found(partial(ours, kernels=True), folder)
    if own != "equal":
        return own
    try:
        return own if found(theirs, folder) == "equal" else "mended"
    except (ValueError, LookupError, TypeError, AttributeError):
        return "mended"


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_of_transformers_is_answered_as_the_table_says(
    name: str, written: Path, verdicts: dict[str, str]
) -> None:
    own = verdict(written / name)
    if os.environ.get("PIPPIN_ORACLE_WRITE"):
        verdicts[name] = own
    assert own == verdicts[name]


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS["differing"])
def test_longrope_turns_by_its_short_factors_in_a_window_that_ends_within_the_first(
    name: str, written: Path
) -> None:
    info = ModelInfo(id="tiny", kind="language", path=str(written / name), architecture=name)
    model, _ = load_weights(info, PLAN, lambda *_: None, Reading(changed={SERVED: 128}))
    assert difference(model, np.load(written / name / "oracle.npz")) < CLOSE


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS["ruled"])
def test_an_answer_keeps_the_rules_about_sequences_of_tokens_as_transformers_does(
    name: str, written: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(written / name, tmp_path / name))
    shutil.copy(folder / "rules.json", folder / "generation_config.json")
    prompt = tuple(np.load(folder / "oracle.npz")["prompt"].tolist())
    ruled: list[int] = np.load(folder / "ruled.npy").tolist()
    answers, _ = run_all(Bench(folder, ModelOptions()), {"a": (prompt, len(ruled))})
    assert answers["a", 0] == ruled
    assert ruled != np.load(folder / "oracle.npz")["answer"].tolist()


def test_no_checkpoint_is_answered_in_another_way_without_a_word() -> None:
    known = json.loads(VERDICTS.read_text("utf-8"))
    assert sorted(known) == sorted(NAMES)
    assert {name for name, own in known.items() if own == "differs"} == {*SETTINGS["differing"]}
