"""Models that the kernels for CPUs compute say what mlx-lm's say in float32; what they do not know is left to MLX."""

import gc
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import msgspec
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import make_prompt_cache

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.device import DevicePlan, configure, decide, find_facts
from pippin.engines.language.kernels.ways import Way, put_on, way_of
from pippin.engines.language.kv_cache.kinds.attention import ForkedAttention, JoinedAttention
from pippin.engines.language.kv_cache.layout import PADDING, without_padding
from pippin.engines.language.kv_cache.probe import choose_batching
from pippin.engines.language.loading import drafting
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.engine import build_engine
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.lora import AdaptedLinear, Adapters, Changes
from pippin.engines.language.model.states import HiddenStates
from pippin.engines.language.model.weights import load_weights, weight_bytes
from pippin.engines.language.upstream.mends import mend
from tests.engines.driving import no_progress
from tests.engines.language.bench import PLAN, TIE, Bench, Eager, follower_of, run_all
from tests.engines.language.tiny_heads import dflash_head, eagle3_head, eagle3_model, qwen_with_head
from tests.engines.tiny_models import COMMON, EXPERTS, HEADS, VOCABULARY, tiny_model

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

TOLERANCE = 1e-4  # of logits
BASE = {**HEADS, **COMMON, "num_hidden_layers": 3}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32}
GRANITE = {
    "attention_bias": False,
    "mlp_bias": False,
    "logits_scaling": 2.0,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
}
GEMMA3 = {"sliding_window": 24, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16, "head_dim": 16}
GPT_OSS = {
    "num_local_experts": 5,
    "num_experts_per_tok": 3,
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "head_dim": 32,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ("llama", {"rope_traditional": True, "num_key_value_heads": 4}),
    ("llama", {"rope_scaling": LLAMA3}),
    ("llama", {"rope_scaling": YARN}),
    ("qwen2", {}),
    ("qwen3", {"head_dim": 32}),
    ("smollm3", {"num_hidden_layers": 5}),
    ("phi3", {}),
    ("phi3", {"partial_rotary_factor": 0.5, "tie_word_embeddings": False}),
    ("granite", GRANITE),
    ("gemma", {}),
    ("gemma2", {}),
    (
        "llama",
        {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 24},
    ),
    ("gemma3_text", {**GEMMA3, "num_hidden_layers": 4}),
    ("qwen3_moe", {**EXPERTS, "head_dim": 16}),
    (
        "qwen3_moe",
        {**EXPERTS, "num_experts": 9, "norm_topk_prob": False, "mlp_only_layers": [1], "head_dim": 32},
    ),
    ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False}),
    ("gpt_oss", GPT_OSS),
    ("gpt_oss", {**GPT_OSS, "rope_scaling": YARN}),
]
FORMATS: list[tuple[int | str | None, mx.Dtype]] = [
    (None, mx.float32),
    (None, mx.bfloat16),
    (4, mx.float16),
    (8, mx.float32),
    (3, mx.bfloat16),
    ("mxfp4", mx.bfloat16),
    ("nvfp4", mx.bfloat16),
]


def made(architecture: str, changes: dict[str, Any], bits: int | str | None, type: mx.Dtype) -> nn.Module:
    """`bits` of affine quantisation, another quantisation's name, or None."""
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    arguments = {"model_type": architecture, **BASE, **changes}
    mx.random.seed(7)
    model = module.Model(module.ModelArgs.from_dict(arguments))
    model.update(tree_map(lambda a: a + 0.08 * mx.random.normal(a.shape), model.parameters()))
    if isinstance(bits, str):
        nn.quantize(model, mode=bits)
    elif bits is not None:
        nn.quantize(model, 32, bits)
    model.update(cast(model.parameters(), type))
    mend(model)
    return model


def cast(parameters: Any, type: mx.Dtype) -> Any:
    return tree_map(lambda a: a.astype(type) if mx.issubdtype(a.dtype, mx.floating) else a, parameters)


def cases() -> list[Any]:
    """Each architecture with two of the formats, in turn; the first one with all; the rest is long."""
    found = []
    for number, (architecture, changes) in enumerate(CASES):
        for place, stored in enumerate(FORMATS):
            quick = number == 0 or (place - 2 * number) % len(FORMATS) < 2
            marks = () if quick else pytest.mark.long
            found.append(pytest.param(architecture, changes, *stored, marks=marks))
    return found


@pytest.mark.parametrize(("architecture", "changes", "bits", "type"), cases())
def test_logits_are_those_of_mlx_in_float32(
    architecture: str, changes: dict[str, Any], bits: int | str | None, type: mx.Dtype
) -> None:
    reference = made(architecture, changes, bits, type)
    reference.update(cast(reference.parameters(), mx.float32))
    model = made(architecture, changes, bits, type)
    assert way_of(model) == Way("fused layers")
    kernels, _ = put_on(model, Way("fused layers"), 2)
    tokens = mx.random.randint(0, BASE["vocab_size"], (1, 90))
    theirs, ours = make_prompt_cache(reference), make_prompt_cache(kernels)
    start = 0
    for count in (40, 1, 1, 7, 1, 35):
        chunk = tokens[:, start : start + count]
        start += count
        expected, found = reference(chunk, cache=theirs), kernels(chunk, cache=ours)
        assert float(mx.abs(expected - found).max()) < TOLERANCE


def loaded(folder: Path, plan: DevicePlan) -> nn.Module:
    info = ModelInfo(id="tiny", kind="language", path=str(folder))
    model, _ = load_weights(info, plan, no_progress, kernel_threads=2)
    return model


@pytest.fixture
def on_a_cpu() -> DevicePlan:
    return decide(find_facts(), ModelOptions())


def runs_on_kernels(model: nn.Module) -> bool:
    return type(model).__name__ == "KernelDecoder"


def test_what_mlx_lm_made_of_a_model_is_given_back_when_its_weights_are_taken(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama", hidden_size=256, num_hidden_layers=2)
    info = ModelInfo(id="m", kind="language", path=str(folder), architecture="llama")
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    plan = msgspec.structs.replace(PLAN, kernels=True)
    model, _ = load_weights(info, plan, no_progress, kernel_threads=2)
    gc.disable()
    try:
        held, kept = mx.get_active_memory() - before, mx.get_cache_memory()
    finally:
        gc.enable()
    assert held + kept < weight_bytes(model) / 8


def test_weights_stay_as_they_are_stored(tmp_path: Path, on_a_cpu: DevicePlan) -> None:
    folder = quantised(tiny_model("llama", tmp_path / "model", vocab_size=320))
    model = loaded(folder, on_a_cpu)
    assert runs_on_kernels(model)
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert weight_bytes(model) < 1.1 * stored


@pytest.mark.parametrize("type", [mx.bfloat16, mx.float16])
def test_dense_weights_of_16_bits_are_not_widened(
    tmp_path: Path, on_a_cpu: DevicePlan, type: mx.Dtype
) -> None:
    folder = tiny_model("llama", tmp_path / "model", vocab_size=320)
    weights = {name: array.astype(type) for name, array in mx.load(str(folder / "model.safetensors")).items()}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    model = loaded(folder, on_a_cpu)
    assert runs_on_kernels(model)
    assert weight_bytes(model) <= 1.02 * sum(array.nbytes for array in weights.values())


def test_mlx_keeps_little_of_what_is_freed_beside_the_kernels(tmp_path: Path, on_a_cpu: DevicePlan) -> None:
    configure(on_a_cpu)
    loaded(quantised(tiny_model("llama", tmp_path / "model", vocab_size=320)), on_a_cpu)
    assert mx.get_cache_memory() < 2**20
    mx.eval([mx.zeros(1 << 24) + 1 for _ in range(3)])  # 64 MiB each
    assert mx.get_cache_memory() <= 64 * 2**20


def quantised(folder: Path, damage: Any = None) -> Path:
    """The checkpoint with 4-bit weights; `damage` may change one of its arrays."""
    config = json.loads((folder / "config.json").read_text())
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    model.load_weights(str(folder / "model.safetensors"))
    nn.quantize(model, 32, 4)
    weights = dict(tree_flatten(model.parameters()))
    if damage is not None:
        name = "model.layers.0.mlp.up_proj.scales"
        weights[name] = damage(weights[name])
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    config["quantization"] = {"group_size": 32, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_activations_are_rounded_where_the_option_says_so(tmp_path: Path, on_a_cpu: DevicePlan) -> None:
    folder = quantised(tiny_model("llama", tmp_path / "model", vocab_size=320))
    rounding = decide(find_facts(), ModelOptions(cpu_activations="int8"))
    tokens = mx.array([[5, 17, 300, 2]])
    exact, rounded = loaded(folder, on_a_cpu)(tokens), loaded(folder, rounding)(tokens)
    size = float(mx.abs(exact).max())
    assert 1e-5 * size < float(mx.abs(exact - rounded).max()) < 0.1 * size


def test_the_log_tells_of_an_option_that_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = decide(find_facts(), ModelOptions(cpu_activations="int8", cpu_kernels="off"))
    loaded(tiny_model("llama", tmp_path / "model"), plan)
    assert "--cpu-activations int8 changes nothing without the kernels" in caplog.text


def test_scales_that_are_not_numbers_are_refused(tmp_path: Path, on_a_cpu: DevicePlan) -> None:
    folder = quantised(tiny_model("llama", tmp_path / "model"), lambda scales: scales * float("nan"))
    with pytest.raises(ServerError, match="not finite"):
        loaded(folder, on_a_cpu)


@pytest.mark.parametrize(
    "options",
    [
        ModelOptions(cpu_kernels="off"),
        ModelOptions(dtype="bfloat16"),
    ],
)
def test_what_options_ask_for_and_the_kernels_lack_runs_on_mlx(options: ModelOptions) -> None:
    assert not decide(find_facts(), options).kernels


def test_a_model_that_only_wraps_a_decoder_runs_as_that() -> None:
    inner = {"model_type": "gemma3_text", **BASE, **GEMMA3}
    module = importlib.import_module("mlx_lm.models.gemma3")
    mx.random.seed(3)
    arguments = {"model_type": "gemma3", "text_config": inner, "vocab_size": BASE["vocab_size"]}
    model = module.Model(module.ModelArgs.from_dict(arguments))
    tokens = mx.arange(30)[None]
    expected = model(tokens, cache=make_prompt_cache(model))
    mx.eval(expected)
    assert way_of(model) == Way("fused layers")
    kernels, _ = put_on(model, Way("fused layers"), 2)
    found = kernels(tokens, cache=make_prompt_cache(kernels))
    assert float(mx.abs(expected - found).max()) < TOLERANCE


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_moe"])
def test_a_class_that_computes_otherwise_than_it_did_is_left_to_mlx(
    tmp_path: Path,
    on_a_cpu: DevicePlan,
    architecture: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tiny_model(architecture, tmp_path / "model")
    attention = importlib.import_module(f"mlx_lm.models.{architecture}").Attention
    own = attention.__call__
    monkeypatch.setattr(attention, "__call__", lambda self, x, *given: own(self, x, *given) + 0.1 * x)
    tokens = mx.arange(5)[None]
    model = loaded(folder, on_a_cpu)
    assert not runs_on_kernels(model)
    assert "away from what the installed mlx-lm gives" in caplog.text
    alone = loaded(folder, decide(find_facts(), ModelOptions(cpu_kernels="off")))
    assert mx.allclose(model(tokens), alone(tokens), atol=1e-5)


def test_prompts_of_different_lengths_are_computed_together() -> None:
    kernels, _ = put_on(made("llama", {}, 4, mx.float16), Way("fused layers"), 2)
    prompts = [[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15, 16]]
    alone, started = [], []
    for prompt in prompts:
        cache = make_prompt_cache(kernels)
        kernels(mx.array([[1, 2, 3]]), cache=cache)
        alone.append(kernels(mx.array([prompt]), cache=cache)[0])
        cache = make_prompt_cache(kernels)
        kernels(mx.array([[1, 2, 3]]), cache=cache)
        started.append(cache)
    counts = [len(prompt) for prompt in prompts]
    width = max(counts)
    padded = mx.array([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
    together = kernels(padded, cache=[JoinedAttention(layer, counts) for layer in zip(*started, strict=True)])
    for row, (count, expected) in enumerate(zip(counts, alone, strict=True)):
        assert float(mx.abs(together[row, :count] - expected).max()) < TOLERANCE
    assert [cache[0].offset for cache in started] == [3 + count for count in counts]


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [("llama", {}), ("granite", GRANITE), ("gemma3_text", GEMMA3), ("gpt_oss", GPT_OSS)],
)
def test_a_pass_that_rests_between_layers_gives_what_a_whole_one_gives(
    architecture: str, changes: dict[str, Any]
) -> None:
    kernels: Any = put_on(made(architecture, changes, 4, mx.float16), Way("fused layers"), 2)[0]
    whole, rests, other = (make_prompt_cache(kernels) for _ in range(3))
    first, tokens = mx.arange(30)[None], mx.array([[5, 6, 7, 8, 9, 10]])
    for cache in (whole, rests, other):
        kernels(first, cache=cache)
    parts = kernels.in_parts(tokens, rests)
    layers = 0
    while (logits := next(parts)) is None:
        kernels(mx.array([[layers]]), cache=other)  # of a stream beside it
        layers += 1
    assert layers == len(kernels.layers)
    assert mx.array_equal(logits, kernels(tokens, cache=whole))
    assert mx.array_equal(kernels(mx.array([[3]]), cache=rests), kernels(mx.array([[3]]), cache=whole))


def test_several_prompts_rest_together() -> None:
    kernels: Any = put_on(made("llama", {}, 4, mx.float16), Way("fused layers"), 2)[0]
    counts, tokens = [4, 2], mx.array([[5, 6, 7, 8], [9, 10, 0, 0]])
    found = []
    for rests in (False, True):
        own = [make_prompt_cache(kernels) for _ in counts]
        layers = [JoinedAttention(layer, counts) for layer in zip(*own, strict=True)]
        found.append([*kernels.in_parts(tokens, layers)][-1] if rests else kernels(tokens, cache=layers))
    assert mx.array_equal(found[0][0], found[1][0])
    assert mx.array_equal(found[0][1, :2], found[1][1, :2])


def test_rows_that_branch_from_several_prompts_say_what_each_says_alone() -> None:
    kernels, _ = put_on(made("llama", {}, 4, mx.float16), Way("fused layers"), 2)

    def prompt(*tokens: int) -> list[Any]:
        cache = make_prompt_cache(kernels)
        kernels(mx.array([tokens]), cache=cache)
        return cache

    def branches(*trunks: list[Any]) -> list[Any]:
        return [ForkedAttention(trunk, trunk.offset, 16) for trunk in trunks]

    one, another, other = prompt(1, 2, 3, 4), prompt(6, 5, 4, 3), prompt(9, 8, 7)
    # The third row has the first layer's memory of the rows before it, and another's in the layers behind it.
    mixed = [one[0], *another[1:]]
    trunks, counts = [one, one, mixed, other, other], [3, 4, 5, 2, 1]
    tokens = mx.array([[5 + row, 6, 7, 8, 9] for row in range(len(trunks))])
    alone = [
        kernels(tokens[row : row + 1, :count], cache=branches(*trunk))[0]
        for row, (trunk, count) in enumerate(zip(trunks, counts, strict=True))
    ]
    layers = zip(*(branches(*trunk) for trunk in trunks), strict=True)
    together = kernels(tokens, cache=[JoinedAttention(layer, counts) for layer in layers])
    for row, (count, expected) in enumerate(zip(counts, alone, strict=True)):
        assert float(mx.abs(together[row, :count] - expected).max()) < TOLERANCE


def test_padding_of_a_check_is_not_computed_and_changes_nothing_for_the_tokens_beside_it() -> None:
    kernels, _ = put_on(made("llama", {}, 4, mx.float16), Way("fused layers"), 2)
    rows, expected = [[5, 6, 7, 8], [9], [10, 11]], []
    for row in rows:
        cache = make_prompt_cache(kernels)
        kernels(mx.array([[1, 2, 3]]), cache=cache)
        expected.append(kernels(mx.array([row]), cache=cache)[0])
    cache = make_prompt_cache(kernels)
    kernels(mx.array([[1, 2, 3]] * 3), cache=cache)
    padded = mx.array([[*row, *[PADDING] * (4 - len(row))] for row in rows])
    assert without_padding(kernels, padded) is padded
    found = kernels(padded, cache=cache)
    for row, (tokens, alone) in enumerate(zip(rows, expected, strict=True)):
        assert float(mx.abs(found[row, : len(tokens)] - alone).max()) < TOLERANCE
        assert not mx.any(found[row, len(tokens) :]).item()


def test_models_of_mlx_are_given_tokens_for_padding() -> None:
    model = made("llama", {}, None, mx.float32)
    assert without_padding(model, mx.array([[7, PADDING], [PADDING, PADDING]])).tolist() == [[7, 0], [0, 0]]


def test_the_table_of_places_is_kept_while_memory_stays_where_it_is() -> None:
    kernels, _ = put_on(made("llama", {}, 4, mx.float16), Way("fused layers"), 2)
    tokens = mx.array([[5, 6, 7, 8], [9, 10, 11, 12]])
    expected = kernels(tokens, cache=make_prompt_cache(kernels))
    cache = make_prompt_cache(kernels)
    found, tables = [], []
    for place in range(4):
        found.append(kernels(tokens[:, place : place + 1], cache=cache))
        tables.append(kernels._kept._places)
        if place == 1:
            left = np.asarray(cache[1].keys)
            cache[1].keys = mx.array(left)
            left[:] = np.nan  # and not to be read any more
    assert tables[0] is tables[1] is not tables[2] is tables[3]
    assert float(mx.abs(mx.concatenate(found, axis=1) - expected).max()) < TOLERANCE


@pytest.mark.parametrize("bits", [4, 8])
def test_layers_with_sinks_keep_keys_and_values_in_few_bits(bits: Literal[4, 8]) -> None:
    """MLX's attention takes no sinks then; the trial of the batch compares with what the model says unquantised."""
    kernels, _ = put_on(made("gpt_oss", GPT_OSS, 4, mx.bfloat16), Way("fused layers"), 2)
    batching = choose_batching(kernels, ModelOptions(kv_bits=bits, kv_group_size=32))
    assert batching.shape is not None
    forms = {getattr(kind, "key_bits", None) for kind in batching.shape.layout.kinds}
    assert forms == {None, bits}  # of layers with a window and without


def test_adapters_add_to_projections_that_are_fused() -> None:
    """phi3 has query, key and value in one matrix: what is added to it falls apart into three."""
    mx.random.seed(5)
    model, ours = made("phi3", {}, None, mx.float32), made("phi3", {}, None, mx.float32)
    kernels, _ = put_on(ours, Way("fused layers"), 2)
    adapters = Adapters(("one",))
    for path in ("layers.1.self_attn.qkv_proj", "layers.0.mlp.gate_up_proj", "layers.2.mlp.down_proj"):
        inside, out = kernels.linear_sizes(f"model.{path}")
        down, up = mx.random.normal((2, inside, 4)) * 0.3, mx.random.normal((2, 4, out)) * 0.3
        up[0] = 0
        kernels.adapt(f"model.{path}", adapters.of, down, up)
        _, number, part, name = path.split(".")
        parent = model.layers[int(number)][part]
        parent[name] = AdaptedLinear(parent[name], Changes(adapters, down, up))
    tokens = mx.random.randint(0, 300, (3, 9))
    for rows in ([0, 0, 0], [1, 1, 1], [1, 0, 1]):
        adapters.choose(rows)
        caches = make_prompt_cache(model), make_prompt_cache(kernels)
        expected, found = model(tokens, cache=caches[0]), kernels(tokens, cache=caches[1])
        assert float(mx.abs(expected - found).max()) < TOLERANCE


@pytest.mark.long
@pytest.mark.model
def test_the_demo_model_says_the_same_as_in_float32(demo_model: Path, on_a_cpu: DevicePlan) -> None:
    """Every token of the answers is the likeliest, or ties with it, by what MLX says of the whole in one pass."""
    bench = Bench(demo_model, ModelOptions(), on_a_cpu)
    assert runs_on_kernels(bench.model)
    texts = ("The capital of France is", "def fibonacci(n):\n")
    prompts = {text: (tuple(bench.tokenizer.encode(text)), 8) for text in texts}
    answers = run_all(bench, prompts)[0]
    alone = loaded(demo_model, decide(find_facts(), ModelOptions(cpu_kernels="off")))
    assert not runs_on_kernels(alone)
    for text in texts:
        prompt, answer = prompts[text][0], answers[text, 0]
        assert len(answer) == 8
        logits = alone(mx.array([[*prompt, *answer[:-1]]]))[0, len(prompt) - 1 :]
        said = mx.take_along_axis(logits, mx.array(answer)[:, None], axis=-1)[:, 0]
        assert float((logits.max(axis=-1) - said).max()) < TIE


def test_the_states_after_layers_are_those_of_mlx_lms_layers(tmp_path: Path) -> None:
    """And the logits are what they are without."""
    folder = tiny_model("llama", tmp_path / "llama", num_hidden_layers=4)
    tokens = mx.array([[5, 9, 200, 3, 77], [8, 1, 2, 3, 4]])
    found = []
    for threads in (None, 2):
        model = Bench(
            folder, ModelOptions(), msgspec.structs.replace(PLAN, kernels=threads is not None)
        ).model
        head = Head(model, VOCABULARY)
        states = HiddenStates(model, head, (0, 2, 3))
        logits = model(tokens, cache=make_prompt_cache(model))
        found.append((np.array(states.take()), np.array(logits)))
    (states, logits), (theirs, their_logits) = found
    assert states.shape == (2, 5, 3 * 64)
    assert np.abs(states - theirs).max() < 1e-3 * np.abs(states).max()
    assert np.abs(logits - their_logits).max() < 1e-3 * np.abs(logits).max()


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "mtp"])
def test_a_draft_head_on_the_kernels_gives_the_models_own_answer(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    if kind == "mtp":
        model, options = qwen_with_head(tmp_path / "model"), ModelOptions(mtp=True, num_draft_tokens=1)
    else:
        head = (eagle3_head if kind == "eagle3" else dflash_head)(tmp_path / "head")
        model = eagle3_model(tmp_path / "model")
        options = ModelOptions(draft_model_path=str(head), num_draft_tokens=3)
    plan = msgspec.structs.replace(PLAN, kernels=True)
    bench = Bench(model, options, plan)
    bench.engine = build_engine(Asked(bench.model, bench.tokenizer, options, plan, bench.folder, 2))
    prompts = {f"r{place}": ((*range(5, 40), place), 20) for place in range(3)}
    answers, _ = run_all(bench, prompts)
    for name, (prompt, count) in prompts.items():
        assert len(answers[name, 0]) == count
        bench.judge(prompt, answers[name, 0])
    assert bench.engine.stats().draft_tokens > 0
    drafter = follower_of(bench.engine).head
    assert type(drafter.inner.fc).__name__ == "KernelLinear"


def test_a_head_of_nothing_but_zeros_gives_zeros() -> None:
    """The state of a padding token whose embedding is zero, alone in its batch, is given to no kernel."""
    from pippin.engines.language.kernels.decoder import KernelHead  # only where the kernels are built

    kernels: Any = None
    head = KernelHead(kernels, SimpleNamespace(rows=5))  # type: ignore[arg-type]
    assert head(mx.zeros((2, 3))).tolist() == [[0.0] * 5] * 2
