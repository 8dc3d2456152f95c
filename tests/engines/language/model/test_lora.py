"""Adapters: rows of different ones in one batch answer as the model with that adapter alone does."""

import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_adapters, load_model

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.model.lora import AdaptedLinear, Adapters, install, is_low_rank
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
    layer, x = AdaptedLinear(nn.Linear(8, 8), adapters, down, up), mx.random.normal((2, 1, 8))
    adapters.choose([2, 2])
    mx.export_to_dot(written, found := layer(x))
    assert "Gather" not in written.getvalue(), "which a GPU compiles, and copies the matrices with"
    assert mx.allclose(found, layer.base(x) + x @ down[2] @ up[2], atol=1e-5)


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
        ({"peft_type": "IA3"}, "IA3"),
        ({"r": 0}, "rank"),
        ({"r": 8}, "rank"),
        ({"use_dora": True}, "dora"),
        ({"alora_invocation_tokens": [72, 101]}, "alora_invocation_tokens"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["mlp.experts"]}, "target_parameters"),
        ({"lora_bias": True}, "lora_bias"),
        ({"kasa_config": {"beta": 1e-4}}, "kasa_config"),
        ({"use_qalora": True}, "use_qalora"),
        ({"use_of_next_year": True}, "use_of_next_year"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
    ],
)
def test_what_changes_more_than_pairs_of_matrices_is_refused_by_name(
    base: Path, adapters: dict[str, str], tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    folder = as_peft(Path(adapters["one"]), tmp_path / "peft", **config)
    with pytest.raises(ServerError, match=reason):
        Bench(base, ModelOptions(adapter_path=str(folder)))


@pytest.mark.parametrize(
    ("config", "rename", "reason"),
    [
        ({"fine_tune_type": "dora"}, None, "dora"),
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
    with pytest.raises(ServerError, match="dora"):
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
        ("llama", list(LAYERS), "dora"),
        ("qwen3_moe", ["mlp.switch_mlp.gate_proj", "self_attn.q_proj"], "lora"),
        ("llama", ["model.embed_tokens", "self_attn.q_proj"], "lora"),
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
    with pytest.raises(ServerError, match=r"only LoRA|plain linear"):
        Bench(base, ModelOptions(adapters={"mixed": folder}))


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


def test_an_adapter_that_cannot_be_read_is_left_to_be_refused_where_it_is_read(tmp_path: Path) -> None:
    assert is_low_rank(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{")
    assert is_low_rank(str(tmp_path))


@pytest.mark.parametrize(
    ("family", "theirs", "ours"),
    [
        ("gpt2", "transformer.h.0.mlp.c_fc", "model.h.0.mlp.c_fc"),
        ("gpt_neox", "gpt_neox.layers.0.attention.dense", "model.h.0.attention.dense"),
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
    mx.save_safetensors(str(tmp_path / "adapter_model.safetensors"), pair)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    install(model, str(tmp_path), {})
    assert isinstance(dict(model.named_modules())[ours], AdaptedLinear)
