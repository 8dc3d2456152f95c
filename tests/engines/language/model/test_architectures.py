"""Models that are mended answer together, from the first token on, as mlx-lm's own answer each by itself."""

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.language.kv_cache.layout import new_prompt_cache
from pippin.engines.language.kv_cache.probe import choose_batching
from pippin.engines.language.model.weights import load_weights
from pippin.engines.language.upstream.library import OTHER_TYPES
from pippin.engines.language.upstream.mends import classes_of
from tests.engines.language.bench import PLAN, Bench, run_all
from tests.engines.language.tiny_heads import _written, spread
from tests.engines.language.upstream.mended import files
from tests.engines.tiny_models import (
    ARCHITECTURES,
    COMMON,
    HEADS,
    ODD_ONES,
    OF_ANOTHERS_CLASS,
    TinyModels,
    tiny_model,
)

LING: dict[str, Any] = {
    **HEADS,
    **COMMON,
    "tie_word_embeddings": False,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "moe_router_enable_expert_bias": True,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "norm_head": False,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bailing_moe": LING,
    "bailing_moe_v3": {
        **LING,
        "model_type": "bailing_hybrid",
        "architectures": ["BailingMoeV3ForCausalLM"],
        "num_hidden_layers": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "layer_group_size": 2,
        "group_norm_size": 4,
        "rope_interleave": True,
        "partial_rotary_factor": 0.5,
        "short_conv_kernel_size": 4,
        "kda_lower_bound": -5.0,
        "kda_safe_gate": True,
        "no_kda_lora": True,
    },
    "ernie4_5_moe": {
        **HEADS,
        **COMMON,
        "use_bias": False,
        "num_hidden_layers": 2,
        "moe_num_experts": 4,
        "moe_layer_start_index": 1,
        "moe_intermediate_size": 32,
        "moe_k": 2,
        "moe_num_shared_experts": 1,
    },
}


def checkpoint(architecture: str, folder: Path) -> Path:
    """A random checkpoint of one of the `CONFIGURATIONS`."""
    tiny_model("llama", folder)  # for its tokenizer
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    config = {"model_type": architecture, **CONFIGURATIONS[architecture]}
    return _written(folder, spread(module.Model(module.ModelArgs.from_dict(config)), 7), config)


MENDED_WHEN_MADE = {
    "bailing_moe",
    "bailing_moe_linear",
    "bailing_moe_v3",
    "ernie4_5_moe",
    "plamo3",
    "rope_utils",
}
VERDICTS = json.loads((Path(__file__).parents[3] / "oracles" / "text_verdicts.json").read_text())
"""What transformers' own answers said of each checkpoint: what is mended so is no longer what mlx-lm alone computes."""
TINY = {**ARCHITECTURES, **OF_ANOTHERS_CLASS, **ODD_ONES}
MENDED_WHEN_LOADED = sorted(TINY.keys() & set(files("mlx_lm")) - MENDED_WHEN_MADE)


def test_what_is_mended_is_held_against_one_of_the_libraries() -> None:
    kinds = {name.partition("-")[0] for name in VERDICTS}
    compared = {OTHER_TYPES.get(kind, kind) for kind in kinds}
    assert set(files("mlx_lm")) - MENDED_WHEN_MADE - set(MENDED_WHEN_LOADED) <= compared


@pytest.mark.parametrize("architecture", MENDED_WHEN_LOADED)
def test_sequences_answer_together_as_mlx_lm_answers_each(tiny_models: TinyModels, architecture: str) -> None:
    folder = tiny_models(architecture)
    bench = Bench(folder, ModelOptions(cache_block_tokens=8))
    batching = choose_batching(bench.model, bench.options)
    assert batching.shape is not None
    assert batching.rewinds
    prompts = {f"r{place}": (tuple(range(length)), 12) for place, length in enumerate((1, 2, 14, 36))}
    answers, _ = run_all(bench, prompts)
    bench.model, _ = load_model(folder)
    assert not type(bench.model).__module__.startswith("pippin")
    for name, (prompt, tokens) in prompts.items():
        assert len(answers[name, 0]) == tokens
        bench.judge(prompt, answers[name, 0])


@pytest.mark.parametrize("architecture", ["bailing_moe", "bailing_moe_linear"])
def test_layers_behind_the_last_one_do_not_keep_a_model_from_being_read(
    architecture: str, tmp_path: Path
) -> None:
    make = checkpoint if architecture in CONFIGURATIONS else tiny_model
    folder = make(architecture, tmp_path)
    behind = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    head = {f"model.layers.{behind}.eh_proj.weight": mx.ones((64, 128))}
    mx.save_safetensors(str(folder / "model-head.safetensors"), head)
    with pytest.raises(ValueError, match="not in model"):
        load_model(folder)
    model, _ = load_model(folder, get_model_classes=classes_of)
    stored = mx.load(str(folder / "model.safetensors"))
    parameters = dict(tree_flatten(model.parameters()))
    assert all(mx.array_equal(array, stored[name]).item() for name, array in parameters.items())


@pytest.mark.parametrize("architecture", MENDED_WHEN_LOADED)
def test_a_mended_model_has_the_logits_of_mlx_lms(tiny_models: TinyModels, architecture: str) -> None:
    folder = tiny_models(architecture)
    mended, own = Bench(folder, ModelOptions()).model, load_model(folder)[0]
    found, expected = (new_prompt_cache(model) for model in (mended, own))
    tokens = mx.array([[place * 7 % 240 for place in range(60)]])
    for start, stop in ((0, 9), (9, 10), (10, 47), (47, 48), (48, 60)):
        piece = tokens[:, start:stop]
        assert mx.allclose(mended(piece, cache=found), own(piece, cache=expected), atol=1e-3)


def network(x: mx.array, parts: Any, limit: float | None = None, expert: Any = ...) -> mx.array:
    """By its formula: the second of the three matrices multiplies what the first lets through."""
    gate, up, down = (parts[f"{name}_proj"].weight[expert] for name in ("gate", "up", "down"))
    opened, values = nn.silu(x @ gate.T), x @ up.T
    if limit is not None:
        opened, values = mx.minimum(opened, limit), mx.clip(values, -limit, limit)
    return (opened * values) @ down.T


def loaded(folder: Path) -> Any:
    return load_model(folder, get_model_classes=classes_of)[0]


def ernie(folder: Path, bias: list[float] | None) -> Path:
    checkpoint("ernie4_5_moe", folder)
    path = folder / "model.safetensors"
    weights = dict(mx.load(str(path)))
    if bias is not None:
        weights["model.layers.1.mlp.moe_statics.e_score_correction_bias"] = mx.array([bias])
    mx.eval(weights)
    mx.save_safetensors(str(path), weights)
    return folder


def test_ernie_chooses_experts_with_the_bias_of_its_checkpoint(tmp_path: Path) -> None:
    folder = ernie(tmp_path, [0.0, 5.0, 0.0, 5.0])
    layer = loaded(folder).layers[-1].mlp
    x = mx.random.normal((3, 64))
    scores = mx.softmax(x @ layer.gate.weight.T, axis=-1)
    chosen = scores * mx.array([0.0, 1.0, 0.0, 1.0])
    expected = sum(
        (chosen[:, expert] / chosen.sum(axis=-1))[:, None] * network(x, layer.switch_mlp, expert=expert)
        for expert in (1, 3)
    )
    if layer.shared_experts is not None:
        expected += network(x, layer.shared_experts)
    assert mx.allclose(layer(x), expected, atol=1e-5)


def test_ernie_without_a_bias_is_computed_as_mlx_lm_does(tmp_path: Path) -> None:
    folder = ernie(tmp_path, None)
    tokens = mx.array([[1, 2, 3, 4]])
    assert mx.array_equal(loaded(folder)(tokens), load_model(folder)[0](tokens))


@pytest.mark.parametrize("limits", [[0.0, 0.02, 0.0, 0.05], [0, None, 0.02]])
def test_activations_of_ling_are_limited_as_its_configuration_says(tmp_path: Path, limits: list[Any]) -> None:
    folder = checkpoint("bailing_moe_v3", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    shared = limits[::-1]
    config |= {"expert_swiglu_limit_list": limits, "share_expert_swiglu_limit_list": shared}
    (folder / "config.json").write_text(json.dumps(config))
    layers = loaded(folder).layers
    assert len(layers) == CONFIGURATIONS["bailing_moe_v3"]["num_hidden_layers"]
    x = mx.random.normal((3, 64)) * 3
    assert mx.allclose(layers[0].mlp(x), network(x, layers[0].mlp), atol=1e-5)  # the dense one has no limit
    for place, layer in list(enumerate(layers))[1:]:
        limit, of_shared = ((each[place] or None) if place < len(each) else None for each in (limits, shared))
        chosen, weights = layer.mlp.gate(x)
        expected = network(x, layer.mlp.shared_experts, of_shared)
        for row in range(3):
            for expert, weight in zip(chosen[row].tolist(), weights[row], strict=True):
                expected[row] += weight * network(x[row], layer.mlp.switch_mlp, limit, expert)
        assert mx.allclose(layer.mlp(x), expected, atol=1e-4)


def test_a_class_that_ends_the_process_is_told(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "olmo"}))
    info = ModelInfo(id="tiny", kind="language", path=str(folder), architecture="olmo")
    with pytest.raises(ServerError, match="For 'olmo', mlx-lm needs a package that is not installed"):
        load_weights(info, PLAN, lambda *_: None)
