"""TurboQuant: answers are those of mlx-vlm's model with mlx-vlm's TurboQuant cache, alone and in any company."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache.groups import BatchedGroup
from pippin.engines.language.kv_cache.kinds.keys_and_values import BatchedAttention
from pippin.engines.language.kv_cache.kinds.turboquant import BatchedTurboQuant
from pippin.engines.language.kv_cache.probe import choose_batching
from tests.engines.language.bench import Bench, run_all
from tests.engines.tiny_models import TinyModels

PROMPTS = {
    f"r{index}": (tuple((index * 31 + place * 7) % 250 for place in range(20 + index)), 10)
    for index in range(3)
}


@pytest.fixture(scope="module")
def folder(tiny_models: TinyModels) -> Path:
    """Three layers: of more than two the last is not quantised."""
    return tiny_models("llama", num_hidden_layers=3)


def options(key_bits: int, value_bits: int, **more: Any) -> ModelOptions:
    return ModelOptions(
        kv_key_bits=key_bits,  # type: ignore[arg-type]
        kv_value_bits=value_bits,  # type: ignore[arg-type]
        kv_quant_scheme="turboquant",
        cache_block_tokens=8,
        **more,
    )


@pytest.mark.parametrize(
    ("bits", "key_bits", "value_bits"),
    [(3.5, 3, 4), *(pytest.param(*each, marks=pytest.mark.long) for each in ((2.5, 2, 3), (4.0, 4, 4)))],
)
def test_a_batch_answers_as_mlx_vlm_does_alone(
    folder: Path, bits: float, key_bits: int, value_bits: int
) -> None:
    from mlx_vlm.generate.common import maybe_quantize_kv_cache
    from mlx_vlm.models.cache import make_prompt_cache
    from mlx_vlm.utils import load_model

    answers, _ = run_all(Bench(folder, options(key_bits, value_bits, prefix_cache=False)), PROMPTS)
    judge = load_model(folder).language_model
    for name, (prompt, _) in PROMPTS.items():
        cache = make_prompt_cache(judge)
        logits = judge(mx.array([prompt]), cache=cache).logits[0, -1]
        maybe_quantize_kv_cache(cache, 0, 64, bits, "turboquant")
        assert [type(layer).__name__ for layer in cache] == [*["TurboQuantKVCache"] * 2, "KVCache"]
        for answer in answers[name, 0]:
            assert (logits.max() - logits[answer]).item() < 1e-3
            logits = judge(mx.array([[answer]]), cache=cache).logits[0, -1]


def test_company_changes_no_answer(folder: Path) -> None:
    bench = Bench(folder, options(3, 4, prefix_cache=False))
    together, _ = run_all(bench, PROMPTS)
    for name, asked in PROMPTS.items():
        alone, _ = run_all(bench, {name: asked})
        assert alone[name, 0] == together[name, 0]


def test_a_follow_up_goes_on_from_the_prefix_cache(folder: Path) -> None:
    bench = Bench(folder, options(3, 4))
    prompt = PROMPTS["r2"][0] * 3
    run_all(bench, {"a": (prompt, 8)})
    answers, ends = run_all(bench, {"b": (prompt, 8)})
    assert ends["b", 0].usage.cached_tokens >= 64
    fresh, _ = run_all(Bench(folder, options(3, 4, prefix_cache=False)), {"b": (prompt, 8)})
    assert answers == fresh


def test_memory_is_that_of_the_packed_words_and_norms(folder: Path) -> None:
    bench = Bench(folder, options(3, 4))
    engine = bench.engine
    engine.submit(bench.job("a", PROMPTS["r0"][0], 4))
    while not engine.batch.running:
        engine.step()
    group = engine.batch.running[0].slot.group
    assert isinstance(group, BatchedGroup)
    packed = [cache for cache in group._caches if isinstance(cache, BatchedTurboQuant)]
    plain = [cache for cache in group._caches if type(cache) is BatchedAttention]
    assert (len(packed), len(plain)) == (2, 1)
    shape = choose_batching(bench.model, bench.options).shape
    assert shape is not None
    for cache, kind in zip(packed, shape.layout.kinds, strict=False):
        slots, capacity = cache.buffers[0].shape[0], cache.buffers[0].shape[2]
        assert sum(buffer.nbytes for buffer in cache.buffers) == kind.slot_bytes(capacity, 0) * slots
    while engine.busy:
        engine.step()


def test_the_scheme_without_bits_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(ServerError, match="give kv_bits too") as caught:
        Bench(folder, ModelOptions(kv_quant_scheme="turboquant"))
    assert caught.value.report.param == "kv_quant_scheme"
