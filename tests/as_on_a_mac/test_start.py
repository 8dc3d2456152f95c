"""What a Mac computes before the first client comes, who would wait for the compiler else."""

import io
import re
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
from pippin.engines.language.loading import engine as loading
from tests.as_on_a_mac.gpu import Gpu, compute_as_a_gpu
from tests.as_on_a_mac.mac import Mac
from tests.as_on_a_mac.test_wired_memory import CHAT, drive
from tests.engines.language.bench import PLAN, Bench
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


def operations(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What MLX is given to compute from now on."""
    seen: set[str] = set()

    def watching(own: Any) -> Any:
        def watched(*arrays: Any) -> None:
            written = io.StringIO()
            mx.export_to_dot(
                written, *[each for _, each in tree_flatten(arrays) if isinstance(each, mx.array)]
            )
            seen.update(re.findall(r'label ="(\w+)"', written.getvalue()))
            own(*arrays)

        return watched

    for name in ("eval", "async_eval"):
        monkeypatch.setattr(mx, name, watching(getattr(mx, name)))
    return seen


COPIES = {"Contiguous"}
"""What the prefix cache keeps is copied, by kernels that come compiled with MLX (`get_copy_kernel` in its
`nojit_kernels.cpp`)."""


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_moe", "lfm2"])
def test_no_step_of_clients_needs_an_operation_that_the_load_has_not_computed(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of several lengths, with draws of several kinds, a grammar's mask, proposals that are checked, and prompts
    that begin as others did."""
    compute_as_a_gpu(monkeypatch.setattr, Gpu())
    compiled = operations(monkeypatch)
    folder = tiny_model(architecture, tmp_path / "tiny", mac=Mac())
    bench = Bench(folder, ModelOptions(cache_block_tokens=8), replace(PLAN, run_type="bfloat16"))
    loading.try_draws(bench.engine, bench.tokenizer)
    before = set(compiled)
    compiled.clear()
    for count in (1, 2, 5):
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
        bench.engine.submit(bench.job(f"rare{count}", tuple(range(1, 30)), 4, sampling=rare))
        while bench.engine.busy:
            bench.engine.step()
    assert compiled <= before | COPIES


def test_a_model_that_overflows_in_16_bits_is_refused(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama")
    weights = dict(mx.load(str(folder / "model.safetensors")))
    name = next(each for each in weights if each.endswith("layers.0.mlp.down_proj.weight"))
    weights[name] = weights[name] * 1e5
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    preparer = language.open_preparer(spec := WorkerSpec(info=read_info(folder, kind="language"), threads=1))
    for dtype in ("bfloat16", "float32"):
        language.open_engine(replace(spec, options={"dtype": dtype}), preparer, ignored).close()
    with pytest.raises(ServerError, match="no numbers in float16"):
        language.open_engine(replace(spec, options={"dtype": "float16"}), preparer, ignored)


def ignored(*_: Any) -> None:
    """Of the progress of a load."""
