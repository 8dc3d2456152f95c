"""Whatever happens around a request, its answer is what the model alone gives: random schedules on real architectures.

Arrivals, cancels, preemptions, hits, evictions, restarts, chunk sizes, neighbours, proposals, adapters, few-bit caches,
grammars and draws, all mixed. `pytest -m long tests/engines/language/test_schedules.py` runs a night's worth.
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_adapters, load_model
from tests.engines.reference import Reference
from tests.engines.schedule_run import Subject, run_schedule
from tests.engines.schedules import MANNERS, Ask, World, asks, worlds
from tests.engines.tiny_models import ARCHITECTURES, tiny_model

REWINDABLE = ("llama", "qwen3", "qwen3_moe", "gemma3_text", "gpt_oss")
QUANTISABLE = ("llama", "qwen3", "qwen3_moe", "gemma3_text", "qwen3_next")
ADAPTABLE = ("llama", "qwen3", "gemma3_text", "qwen3_moe")
NIGHT = int(os.environ.get("PIPPIN_SCHEDULES", "1000"))


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    root = tmp_path_factory.mktemp("models")
    made: dict[str, Subject] = {}

    def folder(name: str) -> Path:
        path = root / name
        wide = {"head_dim": 32} if name in QUANTISABLE else {}
        return path if path.exists() else tiny_model(name, path, **wide)

    def subject(name: str) -> Subject:
        if name not in made:
            named = (
                {each: str(adapter(folder(name), root, each)) for each in ("one", "two")}
                if name in ADAPTABLE
                else {}
            )
            made[name] = Subject(folder(name), draft=folder("llama"), adapters=named)
            for each, path in named.items():
                model, _ = load_model(folder(name))
                model = load_adapters(model, path)
                model.eval()
                made[name].references[each] = Reference(model, made[name].tokenizer)
        return made[name]

    return subject


def adapter(base: Path, root: Path, name: str) -> Path:
    """A random adapter of mlx-lm's format for all query and value projections."""
    folder = root / f"{base.name}-{name}"
    folder.mkdir()
    rank = {"one": 4, "two": 8}[name]
    mx.random.seed(rank)
    weights = {}
    found: Any = mx.load(str(base / "model.safetensors"))
    for key, weight in found.items():
        if key.endswith(("q_proj.weight", "v_proj.weight")):
            path, (out, inside) = key.removesuffix(".weight"), weight.shape
            weights[f"{path}.lora_a"] = mx.random.normal((inside, rank)) * 0.5
            weights[f"{path}.lora_b"] = mx.random.normal((rank, out)) * 0.1
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    layers = json.loads((base / "config.json").read_text())["num_hidden_layers"]
    parameters = {
        "rank": rank,
        "scale": 0.5,
        "dropout": 0.0,
        "keys": ["self_attn.q_proj", "self_attn.v_proj"],
    }
    config = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def worlds_of(architecture: str) -> st.SearchStrategy[World]:
    """All that this architecture can be run with."""
    kinds = [worlds()]
    if architecture in REWINDABLE:
        kinds += [worlds(proposals="prompt_lookup"), worlds(proposals="draft")]
    if architecture in ADAPTABLE:
        kinds += [worlds(adapted=True), worlds(adapted=True, proposals="prompt_lookup")]
    if architecture in QUANTISABLE:
        alone = {"prefixes": False, "preempt_every": 0, "room": None, "disk": False}
        kinds += [worlds(kv_bits=bits, **alone) for bits in (4, 8)]
        kinds += [worlds(kv_bits=8, quantised_start=20, **alone), worlds(kv_bits=8)]
    return st.one_of(kinds)


@st.composite
def schedules_of(draw: Any, architecture: str) -> tuple[World, list[Ask]]:
    world = draw(worlds_of(architecture))
    manners = list(MANNERS) if world.exact else ["greedy"]
    return world, draw(asks(manners, ["one", "two", None] if world.adapted else [None]))


def check(subject: Subject, architecture: str, profile: settings) -> None:
    @profile
    @given(schedules_of(architecture))
    def run(schedule: tuple[World, list[Ask]]) -> None:
        world, plan = schedule
        note(f"{world}, {plan}")
        with tempfile.TemporaryDirectory() as disk:
            run_schedule(subject, plan, world, Path(disk))

    run()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_schedule_does_not_change_the_answers(
    subjects: Callable[[str], Subject], architecture: str
) -> None:
    profile = settings(
        max_examples=5,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        phases=[Phase.generate],
    )
    check(subjects(architecture), architecture, profile)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_thousand_schedules_do_not_change_the_answers(
    subjects: Callable[[str], Subject], architecture: str
) -> None:
    profile = settings(
        max_examples=NIGHT,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.reuse, Phase.generate],
    )
    subject = subjects(architecture)
    check(subject, architecture, profile)
    print(f"{architecture}: {dict(subject.tally)}")
    if NIGHT >= 100:  # fewer need not have all that there is to try
        for what in ("preempted", "hits", "evicted", "disk_hits"):
            assert subject.tally[what], f"no schedule had any {what}"
    if NIGHT >= 100 and architecture in REWINDABLE:
        assert 0 < subject.tally["accepted"] < subject.tally["proposed"]
