"""Any order of arrivals, cancels, preemptions, hits, chunk sizes and neighbours gives the same greedy tokens."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.engines.bench import Bench, watch
from tests.engines.tiny_models import ARCHITECTURES, tiny_model

from pippin.config.model_options import ModelOptions
from pippin.core.events import Failed


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: tiny_model(name, root / name) for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def benches(folders: dict[str, Path]) -> dict[str, Bench]:
    options = ModelOptions(max_num_seqs=6, cache_block_tokens=8)
    return {name: Bench(folder, options) for name, folder in folders.items()}


TRUNKS = [tuple((seed * 31 + place * 7) % 250 for place in range(90)) for seed in range(3)]

plans = st.lists(
    st.tuples(
        st.integers(0, 2),  # trunk
        st.integers(1, 90),  # tokens of it
        st.lists(st.integers(0, 255), max_size=12).map(tuple),  # own tail
        st.integers(1, 24),  # tokens to make
        st.integers(1, 3),  # choices
        st.integers(0, 4),  # steps before the next arrives
        st.sampled_from([None, None, None, 0, 3, 9]),  # steps after which it is cancelled
        st.integers(0, 1),  # priority
    ),
    min_size=1,
    max_size=7,
)


def run_plan(bench: Bench, plan: list[Any], chunk: int, preempt_every: int) -> None:
    engine = bench.new_engine(msgspec.structs.replace(bench.plan, prefill_chunk=chunk))
    seen = watch(engine)
    prompts, cancels, ended = {}, {}, set()
    arrivals = iter(enumerate(plan))
    due, step, preemptions = 0, 0, 4
    pending = next(arrivals, None)
    while pending is not None or engine.busy:
        while pending is not None and due <= step:
            index, (trunk, count, tail, tokens, choices, gap, cancel, priority) = pending
            name = f"r{index}"
            prompts[name] = TRUNKS[trunk][:count] + tail
            engine.submit(bench.job(name, prompts[name], tokens, n=choices, priority=priority))
            if cancel is not None:
                cancels[name] = step + cancel
            due = step + gap
            pending = next(arrivals, None)
        for name, at in list(cancels.items()):
            if at <= step:
                engine.cancel(name)
                del cancels[name]
                ended.add(name)
        if preempt_every and step % preempt_every == preempt_every - 1 and engine._batch.rows and preemptions:
            preemptions -= 1
            engine._suspend(engine._batch.rows[step % len(engine._batch.rows)])
        for owner, event in engine.step():
            assert owner not in ended, "an event after a cancel"
            assert not isinstance(event, Failed), event
        step += 1
        assert step < 3000
    for index, (_, _, _, tokens, choices, _, cancel, _) in enumerate(plan):
        for choice in range(choices):
            answer = seen.get((f"r{index}", choice), [])
            if cancel is None:
                assert len(answer) == tokens
            bench.judge(prompts[f"r{index}"], answer)
    assert not engine._batch.rows
    assert not engine._scheduler.tickets
    assert len(engine._prompts) == 0


def schedules(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        phases=[Phase.generate],
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_schedule_does_not_change_the_tokens(benches: dict[str, Bench], architecture: str) -> None:
    @schedules(3)
    @given(plans, st.sampled_from([1, 5, 16, 64]), st.sampled_from([0, 0, 5]))
    def check(plan: list[Any], chunk: int, preempt_every: int) -> None:
        run_plan(benches[architecture], plan, chunk, preempt_every)

    check()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_thousands_of_schedules_do_not_change_the_tokens(
    benches: dict[str, Bench], architecture: str
) -> None:
    @schedules(1000)
    @given(plans, st.sampled_from([1, 5, 16, 64]), st.sampled_from([0, 0, 5]))
    def check(plan: list[Any], chunk: int, preempt_every: int) -> None:
        run_plan(benches[architecture], plan, chunk, preempt_every)

    check()
