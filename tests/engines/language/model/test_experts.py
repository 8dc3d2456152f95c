"""Experts that stay on the disk: checkpoints that mlx-vlm repacked answer as those that they were made from, in a batch
and from the prefix cache, within the memory that they are given; what cannot run so is refused by name."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from mlx_lm.utils import load_model, quantize_model, save_model

from pippin.catalog import footprint, read_info
from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.language.model.experts import expert_stats, memory_for_experts
from pippin.engines.language.model.weights import load_weights, weight_bytes
from pippin.engines.language.ranks.opening import refuse_options as refused_by_ranks
from tests.engines.language.bench import PLAN, Bench
from tests.engines.language.vision.any_family import shrink, write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.tiny_vision_models import picture
from tests.engines.language.vision.vision_bench import VisionBench
from tests.engines.tiny_models import tiny_model

# mlx-vlm leaves its files for the collector to close.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LEAST = 0.001  # GB
TEXTS = ("To be, or not to be", "that is", "the question: whether it is nobler in the mind", "To be, or not")


def repacked(folder: Path) -> Path:
    from mlx_vlm.moe_offload import repack

    target = folder.with_name(f"{folder.name}-repacked")
    repack(str(folder), str(target))
    return target


def many_experts(folder: Path, **changes: Any) -> Path:
    """A checkpoint whose experts do not fit into the least memory that they can be given."""
    return tiny_model(
        "qwen3_moe",
        folder,
        **{"num_hidden_layers": 4, "num_experts": 16, "moe_intermediate_size": 128, **changes},
    )


def quantised(folder: Path) -> Path:
    model, config = load_model(many_experts(folder, moe_intermediate_size=256), lazy=True)
    model, config = quantize_model(model, config, 32, 4)
    save_model(folder, model)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def refusal(call: Any) -> tuple[str, str | None]:
    with pytest.raises(ServerError) as caught:
        call()
    return caught.value.report.message, caught.value.report.param


@pytest.mark.parametrize("made", [many_experts, pytest.param(quantised, marks=pytest.mark.long)])
def test_a_batch_answers_as_all_experts_in_memory_do(tmp_path: Path, made: Any) -> None:
    folder = made(tmp_path / "qwen3_moe")
    bench = VisionBench(repacked(folder), expert_cache_gb=LEAST, max_num_seqs=4)
    answers, _ = bench.run(*(bench.job(text, text, tokens=16) for text in TEXTS))
    assert bench.engine.counters.steps < 16 * len(TEXTS)
    again, ends = bench.run(bench.job("again", TEXTS[2], tokens=16))
    assert again["again"] == answers[TEXTS[2]]
    assert ends["again"].usage.cached_tokens
    judge = Bench(folder, ModelOptions(cpu_kernels="off"))
    for text in TEXTS:
        judge.judge(bench.job("x", text).prompt, answers[text])
    used = bench.engine.stats().experts
    assert used is not None
    assert 0 < used.resident_bytes <= used.budget_bytes == LEAST * 1e9
    assert used.evictions
    assert used.hits


@pytest.mark.parametrize("architecture", ["qwen3_next", pytest.param("gpt_oss", marks=pytest.mark.long)])
def test_layers_of_other_kinds_lie_beside_experts_on_the_disk(tmp_path: Path, architecture: str) -> None:
    folder = tiny_model(architecture, tmp_path / architecture)
    bench = VisionBench(repacked(folder), max_num_seqs=4)
    answers, _ = bench.run(*(bench.job(text, text, tokens=12) for text in TEXTS))
    judge = Bench(folder, ModelOptions(cpu_kernels="off"))
    for text in TEXTS:
        judge.judge(bench.job("x", text).prompt, answers[text])


def test_pictures_are_read_with_experts_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(FAMILIES["qwen3_vl_moe"], monkeypatch)
    folder = write("qwen3_vl_moe", FAMILIES["qwen3_vl_moe"], tmp_path / "qwen3_vl_moe")
    shown = picture(60, 28, 1), picture(30, 40, 2)
    plain, other = VisionBench(folder), VisionBench(repacked(folder))
    assert expert_stats(other.model) is not None
    assert other.preparer.info.capabilities.images
    asked = [[bench.job(str(n), each, "What?") for n, each in enumerate(shown)] for bench in (plain, other)]
    assert plain.run(*asked[0])[0] == other.run(*asked[1])[0]


@pytest.mark.long
def test_memory_holds_what_was_given_and_the_layer_that_runs(tmp_path: Path) -> None:
    folder = repacked(many_experts(tmp_path / "m", num_hidden_layers=8, moe_intermediate_size=256))
    info = read_info(folder)
    options = ModelOptions(expert_cache_gb=LEAST)
    bench = VisionBench(folder, expert_cache_gb=LEAST, prefix_cache=False)
    held = weight_bytes(bench.model)
    job = bench.job("a", " ".join(TEXTS), tokens=24)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    bench.run(job)
    experts = 8 * 16 * 3 * 64 * 256 * 4
    layer = experts // 8
    assert mx.get_peak_memory() - before < LEAST * 1e9 + 2 * layer + 4e6 < experts / 2
    assert mx.get_active_memory() - before < LEAST * 1e9 + layer
    # The pool reserves as much before the load as the engine counts afterwards.
    resident = sum(
        array.nbytes for path in folder.glob("*.safetensors") for array in mx.load(str(path)).values()
    )
    assert held == resident + LEAST * 1e9 + 2 * layer
    assert footprint(info, options) - footprint(info, ModelOptions(expert_cache_gb=2 * LEAST)) == -LEAST * 1e9
    assert footprint(info, options) < footprint(info, ModelOptions())
    assert bench.engine.counters.weight_bytes == held


def test_half_of_the_memory_is_for_experts_where_nothing_is_said(tmp_path: Path) -> None:
    folder = repacked(tiny_model("qwen3_moe", tmp_path / "m"))
    info = ModelInfo(id="m", kind="language", path=str(folder), architecture="qwen3_moe")
    all_of_them = 2 * 4 * 3 * 64 * 32 * 4
    half, all_fit = memory_for_experts(info, None, 100_000), memory_for_experts(info, None, 1 << 30)
    assert half is not None
    assert all_fit is not None
    assert (half.kept, all_fit.kept) == (50_000, all_of_them)


def test_what_cannot_run_so_is_refused_by_name(tmp_path: Path) -> None:
    plain = tiny_model("qwen3_moe", tmp_path / "m")
    info = ModelInfo(id="m", kind="language", path=str(plain), architecture="qwen3_moe")
    said, option = refusal(lambda: memory_for_experts(info, 1.0, 1 << 30))
    assert "mlx_vlm.moe_offload" in said
    assert option == "expert_cache_gb"
    folder = repacked(plain)
    info = msgspec.structs.replace(info, path=str(folder))
    # As a drafter, an embedding model or one part of a model in several processes.
    said, _ = refusal(lambda: load_weights(info, PLAN, lambda *_: None))
    assert "use the checkpoint that it was made from" in said
    options = ModelOptions(expert_cache_gb=1.0)
    assert "expert_cache_gb" in refusal(lambda: refused_by_ranks(options))[0]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "tomorrow"}))
    said, _ = refusal(lambda: memory_for_experts(info, None, 1 << 30))
    assert "no model of the architecture" in said
