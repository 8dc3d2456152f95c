"""Adapters: rows of different ones in one batch answer as the model with that adapter alone does."""

import io
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
import pytest
from mlx.utils import tree_flatten
from mlx_lm import models as models_of_mlx_lm
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import dequantize_model, load_adapters, load_model

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.model.adapter_files import is_low_rank
from pippin.engines.language.model.lora import BY_WEIGHT, AdaptedLinear, Adapters, Changes, install
from pippin.engines.language.model.weights import keep_at_hand
from tests.as_on_a_mac.mac import chosen_mac, tie
from tests.engines.language.architectures.any_architecture import write
from tests.engines.language.bench import PLAN, Bench, run_all
from tests.engines.tiny_models import tiny_model

PROMPT = tuple(place * 17 % 240 for place in range(30))
LAYERS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("models") / "llama")


def adapter(folder: Path, rank: int, seed: int, **config: Any) -> Path:
    """An adapter of mlx-lm's format for the tiny llama."""
    folder.mkdir(parents=True)
    mx.random.seed(seed)
    shapes = {"self_attn.q_proj": (64, 64), "self_attn.v_proj": (64, 32), "mlp.down_proj": (96, 64)}
    weights = {}
    for layer in range(2):
        for name in LAYERS:
            inside, out = shapes[name]
            weights[f"model.layers.{layer}.{name}.lora_a"] = mx.random.normal((inside, rank))
            weights[f"model.layers.{layer}.{name}.lora_b"] = mx.random.normal((rank, out)) * 0.1
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    parameters = {"rank": rank, "scale": 0.5, "dropout": 0.0, "keys": list(LAYERS)}
    settings = {"fine_tune_type": "lora", "num_layers": 2, "lora_parameters": parameters, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: str(adapter(root / name, rank, rank)) for name, rank in (("one", 4), ("two", 8))}


def judge(base: Path, folder: str | None, answer: list[int]) -> None:
    model, _ = load_model(base)
    if folder is not None:
        model = load_adapters(model, folder)
        model.eval()
    cache = make_prompt_cache(model)
    logits = model(mx.array([PROMPT]), cache=cache)[0, -1]
    for token in answer:
        assert (logits.max() - logits[token]).item() < (1e-3 if chosen_mac() is None else tie(logits))
        logits = model(mx.array([[token]]), cache=cache)[0, -1]


def test_sequences_of_different_adapters_run_in_one_batch(base: Path, adapters: dict[str, str]) -> None:
    bench = Bench(base, ModelOptions(adapters=adapters, cache_block_tokens=8))
    engine = bench.engine
    names = {"r0": None, "r1": "one", "r2": "two", "r3": "one"}
    found: dict[str, list[int]] = {}
    accept = engine.lifecycle.accept

    def noting(running: Any, sampled: Any) -> None:
        found.setdefault(running.sequence.request.job.id, []).append(sampled.token)
        accept(running, sampled)

    engine.lifecycle.accept = noting  # type: ignore[method-assign]
    for name, wanted in names.items():
        engine.submit(bench.job(name, PROMPT, 12, adapter=wanted, key=(wanted or "").encode()))
    while engine.busy:
        engine.step()
    for name, wanted in names.items():
        judge(base, adapters.get(wanted or ""), found[name])
    assert found["r1"] == found["r3"]
    assert len({tuple(answer) for answer in found.values()}) == 3


def test_the_adapter_of_all_sequences_is_read_where_it_lies() -> None:
    adapters, written = Adapters(("one", "two")), io.StringIO()
    down, up = mx.random.normal((3, 8, 2)), mx.random.normal((3, 2, 8))
    layer, x = AdaptedLinear(nn.Linear(8, 8), Changes(adapters, down, up)), mx.random.normal((2, 1, 8))
    adapters.choose([2, 2])
    mx.export_to_dot(written, found := layer(x))
    assert "Gather" not in written.getvalue(), "which a GPU compiles, and copies the matrices with"
    assert mx.allclose(found, layer.base(x) + x @ down[2] @ up[2], atol=1e-5)


def test_a_draft_head_may_call_a_layer_with_other_rows_than_the_models() -> None:
    adapters = Adapters(("one",))
    layer = AdaptedLinear(nn.Linear(8, 8), Changes(adapters, mx.ones((2, 8, 2)), mx.ones((2, 2, 8))))
    adapters.choose([1, 0, 1])
    x = mx.random.normal((2, 1, 8))
    assert mx.allclose(layer(x), layer.base(x), atol=1e-4)


def test_the_servers_own_adapter_is_for_all_who_name_none(base: Path, adapters: dict[str, str]) -> None:
    bench = Bench(base, ModelOptions(adapter_path=adapters["one"]))
    answers, _ = run_all(bench, {"a": (PROMPT, 12)})
    judge(base, adapters["one"], answers["a", 0])


def test_an_unknown_adapter_is_refused_with_the_names(base: Path, adapters: dict[str, str]) -> None:
    bench = Bench(base, ModelOptions(adapters=adapters))
    with pytest.raises(ServerError, match="one, two") as caught:
        bench.engine.submit(bench.job("a", PROMPT, 1, adapter="three"))
    assert caught.value.report.param == "adapter_path"
    assert not bench.engine.busy


def test_adapters_keep_their_prefixes_apart_in_memory_and_on_disk(
    base: Path, adapters: dict[str, str], tmp_path: Path
) -> None:
    def cached(bench: Bench, adapter: str | None) -> int:
        _, ends = run_all(bench, {"a": (PROMPT, 1)}, key=(adapter or "").encode(), adapter=adapter)
        return ends["a", 0].usage.cached_tokens

    def opened(**folders: str) -> Bench:
        return Bench(base, ModelOptions(adapters=folders, cache_block_tokens=8, cache_dir=str(tmp_path)))

    first = opened(**adapters)
    assert [cached(first, name) for name in ("one", "two", None, "one", "two", None)] == [0, 0, 0, 24, 24, 24]
    first.engine.close()
    again = opened(**adapters)
    assert [cached(again, name) for name in ("one", "two", None)] == [24, 24, 24]
    assert again.engine.stats().cache.disk_hits > 0
    again.engine.close()
    exchanged = opened(one=adapters["two"], two=adapters["one"])
    assert cached(exchanged, "one") == 0, "the name is the same, the weights are not"
    exchanged.engine.close()


def as_peft(folder: Path, target: Path, scales: dict[str, float] | None = None, **config: Any) -> Path:
    """An adapter in PEFT's form; `scales` divide what is stored for layers whose names end so."""
    weights: Any = mx.load(str(folder / "adapters.safetensors"))
    renamed = {}
    for key, value in weights.items():
        path, kind = key.rsplit(".", 1)
        scale = next((found for end, found in (scales or {}).items() if path.endswith(end)), 1.0)
        value = value / scale if kind == "lora_b" else value
        renamed[f"base_model.model.{path}.{'lora_A' if kind == 'lora_a' else 'lora_B'}.weight"] = value.T
    target.mkdir(exist_ok=True)
    mx.save_safetensors(str(target / "adapter_model.safetensors"), renamed)
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 2, **config}
    (target / "adapter_config.json").write_text(json.dumps(settings))
    return target


def test_files_of_peft_are_read(base: Path, adapters: dict[str, str], tmp_path: Path) -> None:
    as_peft(Path(adapters["one"]), tmp_path)
    bench = Bench(base, ModelOptions(adapter_path=str(tmp_path)))
    answers, _ = run_all(bench, {"a": (PROMPT, 12)})
    judge(base, adapters["one"], answers["a", 0])


ONE, ANY = "layers.1.self_attn.q_proj", "self_attn.v_proj"


@pytest.mark.parametrize(
    ("scales", "config"),
    [
        ({ONE: 32.0}, {"alpha_pattern": {ONE: 64}}),
        ({ANY: 8.0}, {"alpha_pattern": {"v_proj": 16, r".*\.1\.self_attn\.v_proj": 64}}),
        ({ONE: 32.0, ANY: 16.0}, {"alpha_pattern": {ONE: 64, r"layers\.\d+\.self_attn\.v_proj": 32}}),
        ({}, {"alpha_pattern": {"proj": 64}}),  # a part of a name is no name
        (
            {ANY: 8.0, "": 2.0},
            {"r": 8, "lora_alpha": 4, "rank_pattern": {".*": 4}, "alpha_pattern": {ANY: 16}},
        ),
        ({ANY: 8.0}, {"r": 4, "lora_alpha": 1, "use_rslora": True, "alpha_pattern": {ANY: 8}}),
        (
            {},
            {
                "bias": "none",
                "fan_in_fan_out": True,
                "layers_to_transform": [0],
                "init_lora_weights": "gaussian",
            },
        ),
    ],
)
def test_patterns_of_peft_are_matched_as_peft_does(
    base: Path, adapters: dict[str, str], tmp_path: Path, scales: dict[str, float], config: dict[str, Any]
) -> None:
    folder = as_peft(Path(adapters["one"]), tmp_path / "peft", scales, **config)
    bench = Bench(base, ModelOptions(adapter_path=str(folder)))
    answers, _ = run_all(bench, {"a": (PROMPT, 12)})
    judge(base, adapters["one"], answers["a", 0])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"peft_type": "IA3"}, "its peft_type is IA3, .*merge_and_unload"),
        ({"r": 0}, "rank"),
        ({"r": 8}, "rank"),
        ({"use_dora": True}, "sets use_dora, and .* has nothing"),
        ({"alora_invocation_tokens": [72, 101]}, "alora_invocation_tokens"),
        ({"modules_to_save": ["lm_head"]}, "sets modules_to_save, and .* has nothing"),
        ({"modules_to_save": "lm_head"}, "modules_to_save"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "sets trainable_token_indices, and"),
        ({"target_parameters": ["mlp.experts"]}, "target_parameters.*merge_and_unload"),
        ({"lora_bias": True}, "sets lora_bias, and .* has nothing"),
        ({"kasa_config": {"beta": 1e-4}}, "kasa_config"),
        ({"use_qalora": True}, "use_qalora"),
        ({"use_of_next_year": True}, "use_of_next_year"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
    ],
)
def test_fields_that_cannot_be_honoured_are_refused_by_name(
    base: Path, adapters: dict[str, str], tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    folder = as_peft(Path(adapters["one"]), tmp_path / "peft", **config)
    with pytest.raises(ServerError, match=reason):
        Bench(base, ModelOptions(adapter_path=str(folder)))


@pytest.mark.parametrize(
    ("config", "rename", "reason"),
    [
        ({"fine_tune_type": "dora"}, None, "no pair"),
        ({"fine_tune_type": "full"}, None, "full"),
        ({}, ("self_attn.q_proj", "self_attn.nowhere"), "no such layer"),
        ({}, ("self_attn.q_proj", "input_layernorm"), "RMSNorm"),
        ({}, ("self_attn.v_proj", "self_attn.o_proj"), "from 64 to 64"),
        ({"lora_parameters": {"rank": 4}}, None, "scale"),
        ({"lora_parameters": {"rank": 4, "scale": math.nan}}, None, "scale"),
        ({"lora_parameters": None}, None, "scale"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    base: Path, tmp_path: Path, config: dict[str, Any], rename: tuple[str, str] | None, reason: str
) -> None:
    folder = adapter(tmp_path / "bad", 4, 1, **config)
    if rename is not None:
        weights: Any = mx.load(str(folder / "adapters.safetensors"))
        mx.save_safetensors(
            str(folder / "adapters.safetensors"),
            {key.replace(*rename): value for key, value in weights.items()},
        )
    with pytest.raises(ServerError, match=reason) as caught:
        Bench(base, ModelOptions(adapters={"bad": str(folder)}))
    assert caught.value.report.kind == "load_failed"
    assert "'bad'" in caught.value.report.message


@pytest.mark.parametrize(
    "config",
    [
        {"lora_alpha": math.inf},
        {"lora_alpha": True},
        {"lora_alpha": 1e30},
        {"lora_alpha": 10**400},
        {"use_rslora": "no"},
        {"alpha_pattern": ["v_proj"]},
        {"alpha_pattern": {"(": 8}},
        {"rank_pattern": {"v_proj": None}},
    ],
)
def test_numbers_of_peft_that_are_none_are_refused(
    base: Path, adapters: dict[str, str], tmp_path: Path, config: dict[str, Any]
) -> None:
    folder = as_peft(Path(adapters["one"]), tmp_path / "peft", **config)
    with pytest.raises(ServerError, match=f"no plain {', '.join(config)} "):
        Bench(base, ModelOptions(adapter_path=str(folder)))


def test_peft_s_adapters_are_refused_where_a_class_multiplies_what_they_add_to(
    adapters: dict[str, str], tmp_path: Path
) -> None:
    model = nn.Module()
    model.model_type = "falcon_h1"
    folder = as_peft(Path(adapters["one"]), tmp_path / "peft")
    with pytest.raises(ServerError, match="falcon_h1's class multiplies its weights"):
        install(model, None, {"bad": str(folder)})


@pytest.mark.parametrize("missing", ["lora_a", "lora_b"])
@pytest.mark.parametrize("peft", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_half_a_pair_is_refused_by_name(
    missing: str, peft: bool, own: bool, base: Path, adapters: dict[str, str], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(adapters["one"], tmp_path / "half"))
    weights = dict(mx.load(str(folder / "adapters.safetensors")))
    del weights[f"model.layers.1.mlp.down_proj.{missing}"]
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    if peft:
        folder = as_peft(folder, tmp_path / "peft")
    options = ModelOptions(adapter_path=str(folder)) if own else ModelOptions(adapters={"bad": str(folder)})
    with pytest.raises(ServerError, match=r"layers.1.mlp.down_proj.*no pair"):
        Bench(base, options)


def test_what_the_library_leaves_out_of_the_only_adapter_is_refused(base: Path, tmp_path: Path) -> None:
    folder = trained(base, tmp_path / "adapter", list(LAYERS), "dora")
    weights = dict(mx.load(str(folder / "adapters.safetensors")))
    weights["model.layers.7.mlp.down_proj.lora_a"] = weights["model.layers.7.mlp.down_proj.lora_b"] = (
        mx.zeros(4)
    )
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    with pytest.raises(ServerError, match="no pair"):
        Bench(base, ModelOptions(adapter_path=str(folder)))


def test_adapters_of_experts_are_refused_by_name(tmp_path: Path) -> None:
    base = tiny_model("qwen3_moe", tmp_path / "qwen3_moe")
    folder = adapter(tmp_path / "bad", 4, 1)
    key = "model.layers.0.mlp.switch_mlp.gate_proj"
    pair = {f"{key}.lora_a": mx.zeros((4, 4, 64)), f"{key}.lora_b": mx.zeros((4, 32, 4))}
    mx.save_safetensors(str(folder / "adapters.safetensors"), pair)
    with pytest.raises(ServerError, match=r"switch_mlp.*plain linear layer"):
        Bench(base, ModelOptions(adapters={"bad": str(folder)}))


def trained(base: Path, folder: Path, keys: list[str], kind: str = "lora") -> Path:
    """An adapter as mlx-lm writes it after training, with random matrices."""
    folder.mkdir(parents=True)
    model, _ = load_model(base)
    parameters = {"rank": 4, "scale": 0.5, "dropout": 0.0, "keys": keys}
    linear_to_lora_layers(model, 2, parameters, use_dora=kind == "dora")
    mx.random.seed(3)
    weights = {
        name: array + 0.1 * mx.random.normal(array.shape)
        for name, array in tree_flatten(model.parameters())
        if name.rsplit(".", 1)[-1] in ("lora_a", "lora_b", "m")
    }
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    settings = {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.float32
@pytest.mark.parametrize(
    "ways", [{"kernels": True}, {"kernels": False}, {"kernels": False, "dequantize": False}]
)
@pytest.mark.parametrize(("mode", "group"), [("mxfp4", 32), ("nvfp4", 16), ("mxfp8", 32)])
def test_adapters_count_where_scales_are_bytes(
    mode: str, group: int, ways: dict[str, bool], base: Path, adapters: dict[str, str], tmp_path: Path
) -> None:
    model, config = load_model(base)
    form = {"group_size": group, "bits": 8 if mode == "mxfp8" else 4, "mode": mode}
    nn.quantize(model, **form)
    folder = tmp_path / "packed"
    shutil.copytree(base, folder)
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"}
    )
    (folder / "config.json").write_text(json.dumps({**config, "quantization": form}))
    bench = Bench(folder, ModelOptions(adapters=adapters), msgspec.structs.replace(PLAN, **ways))
    found = set()
    for name in (None, *adapters):
        answers, _ = run_all(bench, {"a": (PROMPT, 12)}, adapter=name, key=str(name).encode())
        judge(folder, adapters.get(name or ""), answers["a", 0])
        found.add(tuple(answers["a", 0]))
    assert len(found) == 3


@pytest.mark.parametrize(
    ("family", "keys", "kind"),
    [
        ("qwen3_moe", ["mlp.switch_mlp.gate_proj", "self_attn.q_proj"], "lora"),
        # mlx-lm takes packed embeddings for narrow ones there.
        pytest.param("llama", ["model.embed_tokens"], "dora", marks=pytest.mark.float32),
    ],
)
def test_what_rows_cannot_choose_is_served_as_the_only_adapter(
    tmp_path: Path, family: str, keys: list[str], kind: str
) -> None:
    base = tiny_model(family, tmp_path / family)
    folder = str(trained(base, tmp_path / "adapter", keys, kind))
    answers, _ = run_all(Bench(base, ModelOptions(adapter_path=folder)), {"a": (PROMPT, 12)})
    judge(base, folder, answers["a", 0])
    plain, _ = run_all(Bench(base, ModelOptions()), {"a": (PROMPT, 12)})
    assert plain != answers
    with pytest.raises(ServerError, match=r"its shapes|plain linear"):
        Bench(base, ModelOptions(adapters={"mixed": folder}))


@pytest.mark.float32
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_rows_choose_among_adapters_of_mlx_lm_that_change_embeddings_and_norms_of_matrices(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    base = tiny_model("llama", tmp_path / "llama", tie_word_embeddings=tied)
    keys = [*LAYERS, *(["model.embed_tokens"] if kind == "lora" else ["lm_head"][tied:])]
    folder = trained(base, tmp_path / "adapter", keys, kind)
    wanted = load_adapters(load_model(base)[0], str(folder))
    wanted.eval()
    plain, model = load_model(base)[0], load_model(base)[0]
    install(model, None, {"one": str(folder)}).choose([1, 0])
    found = model(mx.array([PROMPT, PROMPT]))
    for row, judge_ in enumerate((wanted, plain)):
        assert mx.allclose(found[row], judge_(mx.array([PROMPT]))[0], atol=1e-4)


def peft(folder: Path, weights: dict[str, mx.array], **config: Any) -> str:
    folder.mkdir()
    named = {f"base_model.model.{name}": each for name, each in weights.items()}
    mx.save_safetensors(str(folder / "adapter_model.safetensors"), named)
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return str(folder)


TABLE, HEAD, LAYER = "model.embed_tokens", "lm_head", "model.layers.1.self_attn.q_proj"
FORMS = ("head", "table", "both", "copies", "copy", "base", "tokens", "own tokens", "dora", "biases")


def form(name: str, tied: bool, old: dict[str, mx.array]) -> tuple[dict[str, mx.array], Any, dict[str, Any]]:
    """What a file of PEFT has in one of its forms, its configuration, and the weights of a model with it merged."""
    table, head, own = (old[f"{each}.weight"] for each in (TABLE, HEAD, LAYER))
    a, b, c, d = (mx.random.normal((4, 64)), *(mx.random.normal((size, 4)) * 0.2 for size in (320, 64, 64)))
    rows, new, bias = (mx.random.normal(shape) for shape in ((2, 64), (320, 64), (64,)))
    on_head = {f"{HEAD}.lora_A.weight": a, f"{HEAD}.lora_B.weight": b}
    on_table = {f"{TABLE}.lora_embedding_A": b.T, f"{TABLE}.lora_embedding_B": c}
    on_layer = {f"{LAYER}.lora_A.weight": a, f"{LAYER}.lora_B.weight": d}
    at, stored = mx.array([5, 9]), f"{TABLE}.token_adapter.trainable_tokens_delta"

    def put(matrix: mx.array) -> mx.array:
        found = mx.array(matrix)
        found[at] = rows
        return found

    match name:
        case "head":
            return {**on_head, f"{HEAD}.base_layer.weight": head}, {}, {HEAD: head + 2 * b @ a}
        case "table":
            return on_table, {}, {TABLE: table + 2 * (c @ b.T).T}
        case "both":
            return {**on_head, **on_table}, {}, {HEAD: head + 2 * b @ a, TABLE: table + 2 * (c @ b.T).T}
        case "copies":
            found = {f"{TABLE}.weight": new, f"{HEAD}.weight": new[::-1], **on_layer}
            config = {"modules_to_save": ["embed_tokens", "lm_head"]}
            return found, config, {TABLE: new, HEAD: new[::-1], LAYER: own + 2 * d @ a}
        case "copy":
            return {f"{TABLE}.weight": new}, {"modules_to_save": ["embed_tokens"]}, {TABLE: new}
        case "base":
            found = {f"{HEAD}.base_layer.weight": new, **on_head}
            return found, {}, {HEAD: new + 2 * b @ a, **({TABLE: new} if tied else {})}
        case "tokens":
            config = {"trainable_token_indices": [5, 9]}
            return {stored: rows}, config, {TABLE: put(table), **({HEAD: put(head)} if tied else {})}
        case "own tokens":
            found = {stored: rows, stored.replace(TABLE, HEAD): rows}
            config = {"trainable_token_indices": {"embed_tokens": [5, 9], "lm_head": [5, 9]}}
            return found, config, {TABLE: put(table), HEAD: put(head)}
        case "dora":
            norm = mx.abs(bias) + 1
            whole = own + 2 * d @ a
            whole *= (norm / mx.linalg.norm(whole, axis=1))[:, None]
            return {**on_layer, f"{LAYER}.lora_magnitude_vector": norm}, {"use_dora": True}, {LAYER: whole}
        case _:
            ends = {f"{LAYER}.lora_B.bias": bias, f"{LAYER}.base_layer.bias": bias * 3}
            whole = {LAYER: own + 2 * d @ a, f"{LAYER}.bias": bias * 5}
            return {**on_layer, **ends}, {"lora_bias": True, "bias": "lora_only"}, whole


@pytest.mark.float32
@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("tied", [False, True])
def test_rows_choose_among_all_forms_of_peft(tmp_path: Path, tied: bool, bits: int | None) -> None:
    base = tiny_model("llama", tmp_path / "llama", tie_word_embeddings=tied)
    plain, _ = load_model(
        base, model_config={"tie_word_embeddings": False, "attention_bias": True}, strict=False
    )
    model, twin = load_model(base)[0], load_model(base)[0]
    if bits:
        nn.quantize(model, 32, bits)
        nn.quantize(twin, 32, bits)
    old = dict(tree_flatten(plain.parameters())) | dict(tree_flatten(dequantize_model(twin).parameters()))
    old |= {name: mx.zeros_like(each) for name, each in old.items() if name.endswith(".bias")}
    old |= {f"{HEAD}.weight": old[f"{TABLE}.weight"]} if tied else {}
    mx.random.seed(1)
    forms = {name: form(name, tied, old) for name in FORMS}
    folders = {name: peft(tmp_path / name, found, **config) for name, (found, config, _) in forms.items()}
    adapters, tokens = install(model, None, folders), mx.array([PROMPT])
    keep_at_hand(model)
    adapters.choose([0, *range(1, len(FORMS) + 1)])
    mixed = model(mx.broadcast_to(tokens, (len(FORMS) + 1, len(PROMPT))))
    for index, name in enumerate((None, *FORMS)):
        merged = {} if name is None else forms[name][2]
        named = {key if key.endswith(".bias") else f"{key}.weight": each for key, each in merged.items()}
        plain.load_weights([*{**old, **named}.items()])
        wanted = plain(tokens)[0]
        adapters.choose([index])
        for found in (mixed[index], model(tokens)[0]):
            gap = (mx.abs(found - wanted).max() / wanted.std()).item()
            assert gap < 1e-4, (name, gap)


@pytest.mark.float32
def test_adapters_of_a_tied_head_run_in_batches_with_cached_prompts(tmp_path: Path) -> None:
    base = tiny_model("llama", tmp_path / "llama", tie_word_embeddings=True)
    _, config = load_model(base, model_config={"tie_word_embeddings": False}, strict=False)
    old = dict(tree_flatten(load_model(base)[0].parameters()))
    old[f"{HEAD}.weight"] = old[f"{TABLE}.weight"]
    folders, wanted = {}, {}
    for name in ("head", "copies", "tokens"):
        found, settings, merged = form(name, True, old)
        folders[name] = peft(tmp_path / name, found, **settings)
        wanted[name] = tmp_path / f"merged {name}"
        shutil.copytree(base, wanted[name])
        weights = {**old, **{f"{key}.weight": each for key, each in merged.items()}}
        mx.save_safetensors(str(wanted[name] / "model.safetensors"), weights, {"format": "mlx"})
        (wanted[name] / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    plan = msgspec.structs.replace(PLAN, kernels=True)
    bench = Bench(base, ModelOptions(adapters=folders, cache_block_tokens=8, num_draft_tokens=3), plan)
    for _ in range(2):
        answers: dict[str, list[int]] = {}
        accept = bench.engine.lifecycle.accept

        def noting(running: Any, sampled: Any, found: Any = answers, own: Any = accept) -> None:
            found.setdefault(running.sequence.request.job.id, []).append(sampled.token)
            own(running, sampled)

        bench.engine.lifecycle.accept = noting  # type: ignore[method-assign]
        for adapter_name in folders:
            bench.engine.submit(
                bench.job(adapter_name, PROMPT, 12, adapter=adapter_name, key=adapter_name.encode())
            )
        while bench.engine.busy:
            bench.engine.step()
        bench.engine.lifecycle.accept = accept  # type: ignore[method-assign]
        for adapter_name, folder in wanted.items():
            judge(folder, None, answers[adapter_name])
    assert bench.engine.stats().cache.hits


def test_the_embedding_that_is_the_head_is_told_from_others(tmp_path: Path) -> None:
    model, _ = load_model(tiny_model("llama", tmp_path / "llama", tie_word_embeddings=True))
    model.pictures = nn.Module()
    model.pictures.embedding = nn.Embedding(4, 8)
    head = {f"{HEAD}.lora_A.weight": mx.ones((4, 64)), f"{HEAD}.lora_B.weight": mx.ones((320, 4))}
    install(model, None, {"one": peft(tmp_path / "one", head)})
    assert "changes_of_as_linear" in model.model.embed_tokens


def test_models_that_multiply_by_the_weight_of_their_embedding_are_known() -> None:
    folder = Path(models_of_mlx_lm.__file__).parent
    beside = folder.parent.parent / "mlx_vlm" / "models"
    places = {place: place.stem for place in folder.glob("*.py")}
    places |= {place: place.parent.name for place in beside.glob("*/language.py")}
    by_weight = re.compile(r"(@|matmul\(h,) self\.\S*(embed_tokens|wte)\.weight\.T")
    assert {name for place, name in places.items() if by_weight.search(place.read_text())} == set(BY_WEIGHT)


def test_a_tied_head_that_is_no_layer_is_refused_by_name(tmp_path: Path) -> None:
    model, _ = load_model(tiny_model("llama", tmp_path / "llama", tie_word_embeddings=True))
    model.model_type = BY_WEIGHT[0]
    head = {f"{HEAD}.lora_A.weight": mx.ones((4, 64)), f"{HEAD}.lora_B.weight": mx.ones((320, 4))}
    with pytest.raises(ServerError, match="multiplies by the weight of the embedding"):
        install(model, None, {"one": peft(tmp_path / "one", head)})


@pytest.mark.parametrize(
    ("weights", "config", "reason"),
    [
        ({f"{HEAD}.weight": (321, 64)}, {"modules_to_save": ["lm_head"]}, r"\(321, 64\) \(whole\)"),
        (
            {f"{TABLE}.token_adapter.trainable_tokens_delta": (1, 64)},
            {"trainable_token_indices": [320]},
            "tokens",
        ),
        (
            {f"{TABLE}.token_adapter.trainable_tokens_delta": (1, 64)},
            {"trainable_token_indices": [1, 2]},
            "indices",
        ),
        (
            {"model.norm.weight": (64,)},
            {"modules_to_save": ["norm"]},
            "has a RMSNorm there.*merge_and_unload",
        ),
        (
            {f"{LAYER}.weight": (64, 64)},
            {"modules_to_save": ["q_proj"], "fan_in_fan_out": True},
            "fan_in_fan_out",
        ),
    ],
)
def test_what_peft_stores_and_does_not_fit_is_refused_by_name(
    base: Path, tmp_path: Path, weights: dict[str, tuple[int, ...]], config: dict[str, Any], reason: str
) -> None:
    arrays = {name: mx.ones(shape) for name, shape in weights.items()}
    with pytest.raises(ServerError, match=reason):
        install(load_model(base)[0], None, {"one": peft(tmp_path / "one", arrays, **config)})


@pytest.mark.float32
def test_a_pair_on_the_steps_of_a_state_space_counts_as_where_it_is_merged(tmp_path: Path) -> None:
    """transformers passes PEFT's layer by there, but for packed models: only with those can such a pair be trained."""
    folder, path = write("jamba", tmp_path / "jamba"), "model.layers.0.mamba.dt_proj"
    model, merged = load_model(folder)[0], load_model(folder)[0]
    out, inside = dict(merged.named_modules())[path].weight.shape
    a, b = mx.random.normal((4, inside)), mx.random.normal((out, 4))
    pair = peft(tmp_path / "one", {f"{path}.lora_A.weight": a, f"{path}.lora_B.weight": b})
    install(model, pair, {}).choose([1])
    dict(merged.named_modules())[path].weight += 2 * b @ a
    assert mx.allclose(model(mx.array([PROMPT])), merged(mx.array([PROMPT])), atol=1e-3)


def adapters_of(bench: Bench) -> Any:
    return bench.engine.lifecycle._model.adapters


def test_requests_may_name_a_folder_that_the_operator_gave(base: Path, adapters: dict[str, str]) -> None:
    bench = Bench(base, ModelOptions(adapter_path=adapters["one"], adapters={"two": adapters["two"]}))
    index = adapters_of(bench).index
    assert (index(adapters["one"]), index("two"), index(adapters["two"])) == (1, 2, 2)
    one = Path(adapters["one"])
    assert index(f"{one.parent}/x/../{one.name}/") == 1, "however it is written"
    with pytest.raises(ServerError, match="There is no adapter"):
        index("/etc")


@pytest.mark.parametrize(
    ("config", "plain"),
    [
        ({}, True),
        ({"fine_tune_type": "lora"}, True),
        ({"fine_tune_type": "dora"}, False),
        ({"fine_tune_type": "full"}, False),
        ({"use_dora": True}, False),
    ],
)
def test_what_is_not_plain_lora_is_told_from_it_before_the_model_is_loaded(
    config: dict[str, Any], plain: bool, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    assert is_low_rank(str(tmp_path)) is plain


@pytest.mark.parametrize(
    ("family", "keys", "plain"),
    [
        ("llama", ["self_attn.q_proj"], True),
        ("llama", ["model.embed_tokens", "self_attn.q_proj"], False),
        ("qwen3_moe", ["mlp.switch_mlp.gate_proj", "self_attn.q_proj"], False),
    ],
)
def test_adapters_of_embeddings_and_experts_keep_a_model_off_the_kernels(
    tmp_path: Path, family: str, keys: list[str], plain: bool
) -> None:
    """The kernels for CPUs add to linear layers alone, so that the library has to apply the others to its own model."""
    base = tiny_model(family, tmp_path / family)
    folder = str(trained(base, tmp_path / "adapter", keys))
    assert is_low_rank(folder) is plain
    plan = msgspec.structs.replace(PLAN, kernels=True)
    answers, _ = run_all(Bench(base, ModelOptions(adapter_path=folder), plan), {"a": (PROMPT, 12)})
    judge(base, folder, answers["a", 0])


def test_copies_of_layers_keep_a_model_off_the_kernels(base: Path, tmp_path: Path) -> None:
    copy = {f"{LAYER}.weight": mx.ones((64, 64))}
    folder = peft(tmp_path / "one", copy, modules_to_save=["q_proj"])
    assert not is_low_rank(folder)
    Bench(base, ModelOptions(adapters={"one": folder}), msgspec.structs.replace(PLAN, kernels=True))


def test_an_adapter_that_cannot_be_read_is_left_to_be_refused_where_it_is_read(tmp_path: Path) -> None:
    assert is_low_rank(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{")
    assert is_low_rank(str(tmp_path))


@pytest.mark.float32
@pytest.mark.parametrize(
    ("family", "theirs", "ours"),
    [
        ("gpt2", "transformer.h.0.mlp.c_fc", "model.h.0.mlp.c_fc"),
        ("gpt_neox", "gpt_neox.layers.0.attention.dense", "model.h.0.attention.dense"),
        ("gpt_neox", "gpt_neox.embed_in", "model.embed_in"),
        ("nemotron_h", "model.embeddings", "backbone.embeddings"),
        ("nemotron_h", "model.layers.0.mixer.in_proj", "backbone.layers.0.mixer.in_proj"),
        ("gemma3", "model.language_model.layers.0.mlp.up_proj", "language_model.model.layers.0.mlp.up_proj"),
    ],
)
def test_layers_are_found_under_the_names_of_transformers(
    family: str, theirs: str, ours: str, tmp_path: Path
) -> None:
    model, _ = load_model(write(family, tmp_path / family))
    out, size = dict(model.named_modules())[ours].weight.shape
    name = f"base_model.model.{theirs}.lora_"
    pair = {f"{name}A.weight": mx.ones((1, size)), f"{name}B.weight": mx.ones((out, 1))}
    if "embed" in theirs:
        pair = {f"{name}embedding_A": mx.ones((1, out)), f"{name}embedding_B": mx.ones((size, 1))}
    mx.save_safetensors(str(tmp_path / "adapter_model.safetensors"), pair)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    install(model, str(tmp_path), {})
    layer = dict(model.named_modules())[ours]
    assert isinstance(layer, AdaptedLinear) or "changes_of___call__" in layer
