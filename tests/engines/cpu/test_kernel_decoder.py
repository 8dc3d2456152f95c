"""Models that the kernels for CPUs compute say what mlx-lm's say in float32; what they do not know is left to MLX."""

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import make_prompt_cache

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.cpu.kernels import on_kernels, why_missing, why_not
from pippin.engines.device import DevicePlan, decide, find_facts
from pippin.engines.language.model.weights import load_weights, weight_bytes
from tests.engines.driving import no_progress
from tests.engines.language.bench import Bench, run_all
from tests.engines.tiny_models import COMMON, HEADS, tiny_model

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
    return model


def cast(parameters: Any, type: mx.Dtype) -> Any:
    return tree_map(lambda a: a.astype(type) if mx.issubdtype(a.dtype, mx.floating) else a, parameters)


@pytest.mark.parametrize(("bits", "type"), FORMATS)
@pytest.mark.parametrize(("architecture", "changes"), CASES)
def test_logits_are_those_of_mlx_in_float32(
    architecture: str, changes: dict[str, Any], bits: int | str | None, type: mx.Dtype
) -> None:
    reference = made(architecture, changes, bits, type)
    reference.update(cast(reference.parameters(), mx.float32))
    model = made(architecture, changes, bits, type)
    assert why_not(model) is None
    kernels = on_kernels(model, 2)
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
    model, _ = load_weights(info, plan, no_progress, trust_remote_code=False, kernel_threads=2)
    return model


@pytest.fixture
def on_a_cpu() -> DevicePlan:
    return decide(find_facts(), ModelOptions())


def runs_on_kernels(model: nn.Module) -> bool:
    return type(model).__name__ == "KernelDecoder"


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
        ModelOptions(kv_bits=8),
        ModelOptions(adapters={"one": "somewhere"}),
    ],
)
def test_what_options_ask_for_and_the_kernels_lack_runs_on_mlx(options: ModelOptions) -> None:
    assert not decide(find_facts(), options).kernels


@pytest.mark.parametrize("architecture", ["qwen3_moe", "gemma3_text", "qwen3_next"])
def test_an_architecture_that_is_not_known_runs_on_mlx_and_the_log_says_so(
    tmp_path: Path, on_a_cpu: DevicePlan, architecture: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        model = loaded(tiny_model(architecture, tmp_path / "model"), on_a_cpu)
    assert not runs_on_kernels(model)
    assert f"the architecture {architecture!r} is not one that the kernels know" in caplog.text


@pytest.mark.model
def test_the_demo_model_says_the_same_as_in_float32(demo_model: Path, on_a_cpu: DevicePlan) -> None:
    texts = ("The capital of France is", "def fibonacci(n):\n", "Once upon a time,")
    answers = []
    for plan in (on_a_cpu, decide(find_facts(), ModelOptions(cpu_kernels="off"))):
        bench = Bench(demo_model, ModelOptions(), plan)
        assert runs_on_kernels(bench.model) == plan.kernels
        prompts = {f"r{place}": (tuple(bench.tokenizer.encode(text)), 12) for place, text in enumerate(texts)}
        answers.append(run_all(bench, prompts)[0])
    assert answers[0] == answers[1]
