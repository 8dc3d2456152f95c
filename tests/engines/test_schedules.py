"""Any order of arrivals, cancels, preemptions, hits, chunk sizes and neighbours gives the same greedy tokens."""

import time
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache
from tests.engines.tiny_models import ARCHITECTURES, tiny_model

from pippin.config.model_options import ModelOptions
from pippin.core.events import Accepted, Failed
from pippin.core.models import ModelInfo
from pippin.core.requests import GenerationRequest, Sampling
from pippin.engines.device import DevicePlan
from pippin.engines.language.engine import LanguageEngine
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.loading import build_engine
from pippin.engines.language.tokenizer import Tokenizer
from pippin.engines.language.weights import load_weights

PLAN = DevicePlan(
    run_type="float32",
    dequantize=True,
    prefill_chunk=32,
    wired_limit=None,
    allocator_cache=1 << 26,
    memory_limit=1 << 30,
)
TIE = 1e-3  # logits closer than this may come in either order


class Bench:
    """A tiny model, an engine around it, and the model alone as the judge."""

    def __init__(self, folder: Path, options: ModelOptions, plan: DevicePlan = PLAN) -> None:
        info = ModelInfo(id="tiny", kind="language", path=str(folder), architecture=folder.name)
        self.model, _ = load_weights(info, plan, lambda *_: None, trust_remote_code=False)
        self.tokenizer = Tokenizer.load(folder)
        self.options, self.plan = options, plan
        self.engine = build_engine(self.model, self.tokenizer, options, plan)

    def job(self, id: str, prompt: tuple[int, ...], max_tokens: int, **request: object) -> LanguageJob:
        return LanguageJob(
            id=id,
            request=GenerationRequest(model="tiny", sampling=Sampling(temperature=0), **request),  # type: ignore[arg-type]
            accepted=Accepted(len(prompt)),
            prompt=prompt,
            max_tokens=max_tokens,
            created=time.monotonic(),
        )

    def judge(self, prompt: tuple[int, ...], answer: list[int]) -> None:
        """Every token is what the model alone would say next, or ties with it."""
        cache = make_prompt_cache(self.model)
        logits = self.model(mx.array([prompt]), cache=cache)[0, -1]
        for place, token in enumerate(answer):
            lead = (logits.max() - logits[token]).item()
            assert lead < TIE, f"token {place} of {len(answer)} is behind by {lead}"
            logits = self.model(mx.array([[token]]), cache=cache)[0, -1]


def answers(engine: LanguageEngine, watched: dict[tuple[str, int], list[int]]) -> None:
    """Note each row's tokens as the engine's decoders get them."""
    accept = engine._accept

    def noting(row, choice):  # type: ignore[no-untyped-def]
        watched.setdefault((row.request.job.id, row.choice), []).append(choice.token)
        accept(row, choice)

    engine._accept = noting  # type: ignore[method-assign]


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


def run_plan(bench: Bench, plan: list, chunk: int, preempt_every: int) -> None:
    engine = build_engine(bench.model, bench.tokenizer, bench.options, replace_plan(bench.plan, chunk))
    seen: dict[tuple[str, int], list[int]] = {}
    answers(engine, seen)
    prompts, cancels, ended = {}, {}, set()
    arrivals = iter(enumerate(plan))
    due, step, preemptions = 0, 0, 4
    pending = next(arrivals, None)
    while pending is not None or engine.busy:
        while pending is not None and due <= step:
            index, (trunk, count, tail, tokens, choices, gap, cancel, priority) = pending
            id = f"r{index}"
            prompts[id] = TRUNKS[trunk][:count] + tail
            engine.submit(bench.job(id, prompts[id], tokens, n=choices, priority=priority))
            if cancel is not None:
                cancels[id] = step + cancel
            due = step + gap
            pending = next(arrivals, None)
        for id, at in list(cancels.items()):
            if at <= step:
                engine.cancel(id)
                del cancels[id]
                ended.add(id)
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
    assert not engine._prompts


def replace_plan(plan: DevicePlan, chunk: int) -> DevicePlan:
    import msgspec

    return msgspec.structs.replace(plan, prefill_chunk=chunk)


def schedules(examples: int):  # type: ignore[no-untyped-def]
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
    def check(plan: list, chunk: int, preempt_every: int) -> None:
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
    def check(plan: list, chunk: int, preempt_every: int) -> None:
        run_plan(benches[architecture], plan, chunk, preempt_every)

    check()
