"""`--exact`: the same text alone and in any batch, or a refusal that names what is in its way."""

import mlx.core as mx
import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.device import decide
from pippin.engines.language.kv_cache.probe import choose_batching
from tests.as_on_a_mac.mac import WORKING_SETS, Mac
from tests.as_on_a_mac.test_answers import TOKENS, prompt
from tests.engines.language.bench import PLAN, Bench, run_all
from tests.engines.tiny_models import TinyModels

EXACT = ModelOptions(exact=True)


@pytest.mark.parametrize("gigabytes", WORKING_SETS)
def test_weights_stay_packed_and_all_else_is_float32(gigabytes: int) -> None:
    plan = decide(Mac(gigabytes).facts, EXACT)
    assert (plan.run_type, plan.dequantize) == ("float32", False)
    assert plan == decide(Mac(gigabytes).facts, ModelOptions(dtype="float32"))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (ModelOptions(exact=True, dtype="bfloat16"), "dtype"),
        (ModelOptions(exact=True, dtype="stored"), "dtype"),
        (ModelOptions(exact=True, cpu_activations="int8"), "cpu_activations"),
        (ModelOptions(exact=True, kv_bits=8), "kv_bits"),
        (ModelOptions(exact=True, kv_value_bits=4), "kv_bits"),
    ],
)
def test_what_rounds_is_refused_by_name(options: ModelOptions, name: str) -> None:
    with pytest.raises(ServerError, match=name) as refused:
        decide(Mac().facts, options)
    assert refused.value.report.param == name
    decide(Mac().facts, msgspec.structs.replace(options, exact=False))


def test_a_model_that_computes_in_16_bits_all_the_same_is_refused(tiny_models: TinyModels) -> None:
    bench = Bench(tiny_models("llama"), ModelOptions(prefix_cache=False))
    bench.model.set_dtype(mx.bfloat16)
    try:
        with pytest.raises(ServerError, match="exact cannot be had"):
            choose_batching(bench.model, EXACT)
    finally:
        bench.model.set_dtype(mx.float32)


def test_a_text_is_the_same_alone_in_a_batch_and_behind_a_cached_beginning(tiny_models: TinyModels) -> None:
    plan = decide(Mac().facts, EXACT)
    plan = msgspec.structs.replace(PLAN, run_type=plan.run_type, dequantize=plan.dequantize)
    bench = Bench(tiny_models("qwen3"), ModelOptions(exact=True, cache_block_tokens=8), plan)
    asked = {f"r{row}": (prompt(row), TOKENS) for row in range(6)}
    together, _ = run_all(bench, asked, ignore_eos=True)
    for name, given in asked.items():  # all of it is in the prefix cache by now
        assert run_all(bench, {name: given}, ignore_eos=True)[0][name, 0] == together[name, 0]
