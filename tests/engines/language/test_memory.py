"""The memory of rows and prompts: no mix of requests takes more than the engine was given."""

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache
from tests.engines.bench import Bench, watch
from tests.engines.tiny_models import tiny_model

from pippin.config.model_options import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.events import Failed, Finished
from pippin.engines.language import loading, row_group, scheduler
from pippin.engines.language.engine import LanguageEngine
from pippin.engines.language.row_caches import leaves

MODELS = {
    "llama": ModelOptions(max_num_seqs=6, cache_block_tokens=4),
    "gemma3_text": ModelOptions(max_num_seqs=6, cache_block_tokens=4),
    "lfm2": ModelOptions(max_num_seqs=6, cache_block_tokens=4),
    "quantized": ModelOptions(
        max_num_seqs=6, cache_block_tokens=4, kv_bits=8, kv_group_size=32, quantized_kv_start=40
    ),
}
WIDER = {"quantized": {"head_dim": 32}}


@pytest.fixture(scope="module", autouse=True)
def small_steps() -> Any:
    """Everything that is counted in hundreds of tokens is counted in dozens here."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (scheduler, row_group, loading):
            patch.setattr(module, "CAPACITY_STEP", 16)
        patch.setattr(scheduler, "LENGTH_CLASSES", (64, 160))
        patch.setattr(scheduler, "GROWTH_CHARGED", 32)
        patch.setattr("pippin.engines.language.batch.GROWTH_CHARGED", 32)
        patch.setattr(KVCache, "step", 16)
        yield


@pytest.fixture(scope="module", params=MODELS)
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, small_steps: None
) -> Bench:
    name = request.param
    folder = tmp_path_factory.mktemp("models") / name
    model = tiny_model("llama" if name == "quantized" else name, folder, **WIDER.get(name, {}))
    return Bench(model, MODELS[name])


plans = st.lists(
    st.tuples(
        st.integers(1, 120),  # tokens of the prompt
        st.integers(1, 70),  # tokens to make
        st.integers(1, 3),  # choices
        st.integers(0, 6),  # steps before the next arrives
        st.integers(0, 1),  # priority
    ),
    min_size=2,
    max_size=9,
)


def held(engine: LanguageEngine) -> int:
    """Bytes of all arenas, and of the caches of prompts under way, as their arrays have it."""
    prompts = [prompt.cache for prompt in engine._prompts._prompts.values() if prompt.cache is not None]
    arrays = [
        array
        for cache in prompts
        for layer in leaves(cache)
        for array in (getattr(layer, "cache", None) or [getattr(layer, "keys", None), layer.values])
        if array is not None
    ]
    return engine._batch.bytes + sum(array.nbytes for array in arrays)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],
)
@given(plan=plans, places=st.integers(60, 400), shrink_at=st.sampled_from([None, None, 12, 40]))
def test_no_mix_of_requests_takes_more_than_the_memory(
    bench: Bench, plan: list[Any], places: int, shrink_at: int | None
) -> None:
    engine = bench.new_engine(bench.plan)
    limits = engine._scheduler.limits
    limits.memory = max(limits.row_bytes(places), limits.prompt_bytes(places))
    seen = watch(engine)
    asked, ended = {}, {}
    arrivals, due = iter(enumerate(plan)), 0
    pending = next(arrivals, None)
    for step in range(6000):
        if step == shrink_at:
            limits.memory = limits.memory * 2 // 3
            for ticket in engine._scheduler.hopeless():
                engine._give_up(engine._prompts.of(ticket))
            engine._preempt()
        while pending is not None and due <= step:
            index, (length, tokens, choices, gap, priority) = pending
            prompt = tuple((index * 37 + place * 7) % 250 for place in range(length))
            job = bench.job(f"r{index}", prompt, tokens, n=choices, priority=priority)
            with contextlib.suppress(ServerError):  # it could never fit
                engine.submit(job)
                asked[job.id] = (prompt, tokens, choices)
            due, pending = step + gap, next(arrivals, None)
        for owner, event in engine.step():
            if isinstance(event, Failed):
                assert shrink_at is not None
                ended[owner, 0] = event
            if isinstance(event, Finished):
                ended[owner, event.choice] = event
        assert held(engine) <= limits.memory
        if not engine.busy and pending is None:
            break
    else:
        raise AssertionError("requests are left")
    for owner, (prompt, tokens, choices) in asked.items():
        if isinstance(ended.get((owner, 0)), Failed):
            continue
        for choice in range(choices):
            assert (owner, choice) in ended, "a request is lost"
            answer = seen[owner, choice]
            assert len(answer) == tokens or ended[owner, choice].reason in ("length", "stop")
            if bench.folder.name == "llama" and choice == 0 and owner == next(iter(asked)):
                bench.judge(prompt, answer)
