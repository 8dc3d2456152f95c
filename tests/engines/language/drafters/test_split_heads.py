"""Heads of GLM 5 and GLM 5 Next, split off, and of DeepSeek V4 and Qwen 4: they propose what mlx-vlm drafts."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.requests import Sampling
from pippin.engines.language.loading import drafting
from tests.engines.language.bench import Bench, Eager, judge_others_of_one_that_leaves, run_all
from tests.engines.language.kv_cache.test_glm5_next import glm5_next
from tests.engines.language.kv_cache.test_pooling import V4
from tests.engines.language.kv_cache.test_qwen4_exp import qwen4_exp
from tests.engines.language.step.test_heads import heads_of, judge_drafts
from tests.engines.language.tiny_heads import _written, spread
from tests.engines.language.vision.any_family import write
from tests.engines.tiny_models import ARCHITECTURES, tiny_model

# Nothing is repeated: the entries of an index that tokens said twice make would tie, and the number of tokens that
# are computed together decides how products are rounded, and so which of two the index takes.
DRAWN = random.Random(7).sample(range(240), 200)
PROMPTS = {
    f"r{place}": ((*DRAWN[50 * place : 50 * place + 12 * (1 + place)], place, 3), 12 + 2 * place)
    for place in range(4)
}


def with_v4_head(folder: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    from mlx_vlm.speculative.drafters.deepseek_v4_mtp import Model, ModelConfig

    write("deepseek_v4", replace(V4, config={**V4.config, **changes}), folder)
    config = json.loads((folder / "config.json").read_text())
    config["num_nextn_predict_layers"] = 1
    text = {**config, **config.get("text_config", {})}
    head = Model(ModelConfig.from_dict({"text_config": text}))
    weights = {f"mtp.0.{name}": array for name, array in spread(head, 5).items()}
    weights |= mx.load(str(folder / "model.safetensors"))
    return _written(folder, weights, config), {"mtp": True}


def with_glm_head(folder: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    from mlx_vlm.speculative.drafters.glm_moe_dsa_mtp import Model, ModelConfig

    model = tiny_model("glm_moe_dsa", folder, **changes)
    text = {
        **ARCHITECTURES["deepseek_v32"],
        **changes,
        "model_type": "glm_moe_dsa",
        "tie_word_embeddings": False,
    }
    text |= {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "first_k_dense_replace": 0}
    head = Model(ModelConfig.from_dict({"text_config": text}))
    config = {"model_type": "glm_moe_dsa_mtp", "text_config": text}
    return model, {"draft_model_path": str(_written(folder / "head", spread(head, 5), config))}


def with_next_head(folder: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    from mlx_vlm.speculative.drafters.glm5_next_mtp import Model, ModelConfig

    write("glm5_next", glm5_next(**changes), folder)
    text = json.loads((folder / "config.json").read_text())["text_config"]
    head = Model(ModelConfig.from_dict({"text_config": text}))
    config = {"model_type": "glm5_next_mtp", "text_config": text}
    return folder, {"draft_model_path": str(_written(folder / "head", spread(head, 5), config))}


def with_qwen_head(folder: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    from mlx_vlm.speculative.drafters.qwen4_exp_mtp import Model, ModelConfig

    write("qwen4_exp", qwen4_exp(**changes), folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 1
    head = Model(ModelConfig.from_dict({"text_config": config["text_config"]}))
    weights = {f"mtp.{name}": array for name, array in spread(head, 5).items()}
    weights |= mx.load(str(folder / "model.safetensors"))
    return _written(folder, weights, config), {"mtp": True}


MADE = [
    with_v4_head,
    pytest.param(with_glm_head, marks=pytest.mark.float32),
    with_next_head,
    with_qwen_head,
]


@pytest.fixture(scope="module", params=MADE)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    name = request.param.__name__.split("_")[1]
    folder = (
        tmp_path_factory.mktemp(name)
        / {
            "v4": "deepseek_v4",
            "glm": "glm_moe_dsa",
            "next": "glm5_next",
            "qwen": "qwen4_exp",
        }[name]
    )
    found: tuple[Path, dict[str, Any]] = request.param(folder)
    return found


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculate in every step, whether it pays or not."""
    monkeypatch.setattr(drafting, "Pace", Eager)


def bench_of(pair: tuple[Path, dict[str, Any]], **changes: Any) -> Bench:
    given = {"cache_block_tokens": 8, "num_draft_tokens": 3, **pair[1], **changes}
    return Bench(pair[0], ModelOptions(**given))


def test_it_proposes_what_mlx_vlm_drafts(pair: tuple[Path, dict[str, Any]]) -> None:
    bench = bench_of(pair, prefix_cache=False)
    heads = heads_of(bench)
    for name, (prompt, count) in PROMPTS.items():
        bench.engine.submit(bench.job(name, prompt, count))
    compared = 0
    while bench.engine.busy:
        bench.engine.step()
        running = [each for each in bench.engine.batch.running if heads.is_ready(each.sequence)]
        if compared >= 9:
            break
        if len(running) < 3:
            continue
        asked = [(each.sequence, 3) for each in running]
        for each, (found, *_) in zip(running, heads.propose(asked), strict=True):
            judge_drafts(bench, heads, each.sequence, found)
            compared += 1
    assert compared >= 9


def test_answers_are_the_models_own(pair: tuple[Path, dict[str, Any]]) -> None:
    bench = bench_of(pair)
    judge_others_of_one_that_leaves(bench, PROMPTS, 3)
    assert bench.engine.stats().draft_tokens > 0


@pytest.mark.long
def test_seeded_sampling_is_the_same_with_and_without(pair: tuple[Path, dict[str, Any]]) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=5)
    plain: dict[str, Any] = {name: None if name != "mtp" else False for name in pair[1]}
    found = [run_all(bench_of(pair, **changes), PROMPTS, sampling=sampling)[0] for changes in ({}, plain)]
    assert found[0] == found[1]
