"""What a Mac computes before the first client comes, who would wait for the compiler else."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from msgspec.structs import replace

from pippin.catalog.info import read_info
from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.events import Finished
from pippin.core.models import WorkerSpec
from pippin.core.requests import JsonObject, Sampling
from pippin.engines import language
from pippin.engines.device import DeviceFacts
from pippin.engines.language.constraints.grammar import GrammarCompiler
from pippin.engines.language.job import Branch
from pippin.engines.language.loading import engine as loading
from pippin.engines.language.loading.weights import way_of
from tests.as_on_a_mac.gpu import Gpu, compute_as_a_gpu
from tests.as_on_a_mac.mac import Mac
from tests.as_on_a_mac.test_wired_memory import CHAT, drive
from tests.engines.language.bench import PLAN, Bench
from tests.engines.language.vision import vision_bench
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.tiny_models import tiny_model


@pytest.mark.parametrize("facts", [Mac().facts, None], ids=["Mac", "CPU"])
def test_usual_draws_are_compiled_where_a_gpu_compiles(
    facts: DeviceFacts | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[mx.Dtype] = []
    own = loading.usual_draws

    def watched(tokenizer: Any, logits: mx.array) -> list[mx.array]:
        drawn.append(logits.dtype)
        return own(tokenizer, logits)

    monkeypatch.setattr(loading, "usual_draws", watched)
    if facts is not None:
        monkeypatch.setattr(loading, "find_facts", lambda: facts)
    limit = mx.set_memory_limit(1 << 34)
    try:
        events = drive(tiny_model("llama", tmp_path / "llama"), "language", CHAT)
    finally:
        mx.set_memory_limit(limit)
    assert isinstance(events[-1], Finished)
    assert drawn == ([] if facts is None else [mx.float32])


COMPILED = {
    "Gather",
    "GatherAxis",
    "Scatter",
    "ScatterAxis",
    "MaskedScatter",
    "DynamicSlice",
    "DynamicSliceUpdate",
} | {"Hadamard"}
"""What MLX compiles from source at its first use, by types and by numbers of indexes (`get_library` in the Metal
backend's `indexing.cpp`, `slicing.cpp`, `compiled.cpp`, `hadamard.cpp`; `get_jit_module` in CUDA's). All else, copies
and sorts too, is in the wheel: its release is built without `MLX_METAL_JIT`."""


def operations(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Any, ...]]:
    """What MLX is given to compute from now on: names, and of what it compiles the types and the indexes."""
    seen: set[tuple[Any, ...]] = set()

    def note(told: dict[str, Any]) -> None:
        if told["type"] != "primitive":
            return
        name, given = told["name"], told["inputs"]
        seen.add((name,))
        if name in COMPILED:
            types = tuple(str(dtype) for _, _, dtype in [*given, *told["outputs"]])
            dimensions = len(given[1][1]) if name in ("Gather", "Scatter") and len(given) > 1 else 0
            arguments = told["arguments"]
            how = arguments[0] if name == "Scatter" else arguments[0] == [0] if name == "Gather" else None
            seen.add((name, types, dimensions, how))

    def watching(own: Any) -> Any:
        def watched(*arrays: Any) -> None:
            given = [each for _, each in tree_flatten(arrays) if isinstance(each, mx.array)]
            mx.export_function(note, lambda: given)
            own(*arrays)

        return watched

    for name in ("eval", "async_eval"):
        monkeypatch.setattr(mx, name, watching(getattr(mx, name)))
    # Of these MLX tells nothing. What a compiled function computes is told operation by operation.
    mx.disable_compile()
    monkeypatch.setattr(mx, "contiguous", lambda array, *_: array + mx.zeros((), array.dtype))
    return seen


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("llama", {"prompt_lookup": True}),
        pytest.param("llama", {"kv_bits": 8, "kv_group_size": 32}, marks=pytest.mark.long),
        *(pytest.param(name, {}, marks=pytest.mark.long) for name in ("gemma3_text", "qwen3_moe", "lfm2")),
    ],
)
def test_no_step_of_clients_needs_an_operation_that_the_load_has_not_computed(
    architecture: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of several lengths, with draws of several kinds, a grammar's mask, proposals that are checked, and prompts
    that begin as others did."""
    compute_as_a_gpu(monkeypatch.setattr, Gpu())
    folder = tiny_model(architecture, tmp_path / "tiny", mac=Mac(), **({"head_dim": 32} if options else {}))
    bench = Bench(folder, ModelOptions(cache_block_tokens=8, **options), replace(PLAN, run_type="bfloat16"))
    compiled = operations(monkeypatch)
    # As a second start has it, which leaves out the trials.
    bench.tried.clear()
    bench.engine = bench.new_engine(bench.plan)
    loading.try_draws(bench.engine, bench.tokenizer)
    before = set(compiled)
    compiled.clear()
    for name, xtc in (("usual", None), ("top choices out", 1.0)):  # alone, where logits stay in 16 bits
        usual = Sampling(temperature=0.7, top_k=20, xtc_probability=xtc, xtc_threshold=0.01)
        bench.engine.submit(bench.job(name, (1, 5, 9), 2, sampling=usual))
        while bench.engine.busy:
            bench.engine.step()
    for count in (2, 5):
        for row in range(count):
            sampling = Sampling(temperature=0.7 if row else 0, top_p=0.8, top_k=20 if row % 2 else None)
            prompt = tuple(range(1, 9 + row))
            bench.engine.submit(bench.job(f"r{count}{row}", prompt, 4, sampling=sampling, ignore_eos=True))
        wanted, grammars = JsonObject(), GrammarCompiler(bench.tokenizer)
        job = bench.job(f"grammar{count}", (1, 5, 9), 20, output_format=wanted, logprobs=2)
        bench.engine.submit(replace(job, grammar=grammars.compile(wanted)))
        penalised = Sampling(temperature=0.7, min_p=0.1, repetition_penalty=1.1, logit_bias={5: 1.0})
        job = bench.job(f"predicted{count}", (1, 5, 9), 9, sampling=penalised)
        bench.engine.submit(replace(job, prediction=tuple(range(9))))
        rare = Sampling(temperature=0.9, top_n_sigma=1.0, typical_p=0.9, p_less=1, xtc_probability=1.0)
        job = bench.job(
            f"scored{count}", tuple(range(3, 20)), 4, n=2, logprobs=5, prompt_logprobs=1, echo=True
        )
        bench.engine.submit(replace(job, prompt_text=""))
        asked = Branch((4, 5), ((6,), (7, 8))), Branch((9,), ((6, 1), (7, 1)))
        bench.engine.submit(replace(bench.job(f"decided{count}", tuple(range(2, 12)), 0), branches=asked))
        bench.engine.submit(bench.job(f"rare{count}", tuple(range(1, 30)), 4, sampling=rare))
        while bench.engine.busy:
            bench.engine.step()
    assert compiled <= before


def test_no_picture_of_clients_needs_an_operation_that_the_load_has_not_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_as_a_gpu(monkeypatch.setattr, Gpu())
    folder = tiny_vision_model("qwen3_vl", tmp_path / "tiny")
    [path] = folder.glob("*.safetensors")
    weights = {name: array.astype(mx.bfloat16) for name, array in dict(mx.load(str(path))).items()}
    mx.save_safetensors(str(path), weights, {"format": "mlx"})
    told: list[set[tuple[Any, ...]]] = []

    def way(*given: Any) -> Any:
        told.append(operations(monkeypatch))  # from the trials on: of what reads weights MLX tells nothing
        return way_of(*given)

    monkeypatch.setattr(vision_bench, "way_of", way)
    bench = vision_bench.VisionBench(folder, replace(PLAN, run_type=None, dequantize=False))
    loading.try_draws(bench.engine, bench.preparer.tokenizer)
    [compiled] = told
    before = set(compiled)
    compiled.clear()
    seen = [bench.job(f"r{row}", picture(60, 28, 1), "What? " * (row + 1), tokens=4) for row in range(2)]
    bench.run(bench.job("first", picture(60, 28, 1), "What?", tokens=4))
    bench.run(*seen, bench.job("text", "hello", tokens=4))
    assert compiled <= before


def test_a_model_that_overflows_in_16_bits_is_refused(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama")
    weights = dict(mx.load(str(folder / "model.safetensors")))
    name = next(each for each in weights if each.endswith("layers.0.mlp.down_proj.weight"))
    weights[name] = weights[name] * 1e5
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    info = read_info(folder, kind="language")

    def opened(dtype: str) -> Any:
        spec = WorkerSpec(info=info, threads=1, options={"dtype": dtype})
        return language.open_engine(spec, language.open_preparer(spec), ignored)

    for dtype in ("bfloat16", "float32"):
        opened(dtype).close()
    with pytest.raises(ServerError, match="no numbers in float16"):
        opened("float16")


def ignored(*_: Any) -> None:
    """Of the progress of a load."""
