"""The memory of rows and prompts: no mix of requests takes more than the engine was given."""

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.events import Failed, Finished
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.kv_cache.layout import arrays_of, leaves
from pippin.engines.language.loading import drafting
from pippin.engines.language.step.engine import LanguageEngine, SpeculativeDecoding
from pippin.engines.language.step.speculation.draft_model import DraftModel
from pippin.engines.language.step.speculation.proposers import Either
from tests.engines.language.bench import Bench, Eager, run_one_at_a_time, watch
from tests.engines.language.drafting import bytes_of
from tests.engines.tiny_models import tiny_model

SMALL = ModelOptions(max_num_seqs=6, cache_block_tokens=4)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "windows": ("gemma3_text", {}),
    "state": ("lfm2", {}),
    "few bits": ("llama", {"kv_bits": 8, "kv_group_size": 32}),
    "fewer bits": ("gemma3_text", {"kv_bits": 4, "kv_group_size": 32}),
    "proposals": ("llama", {"prompt_lookup": True, "num_draft_tokens": 4}),
    "drafts": ("llama", {"num_draft_tokens": 4}),
    "drafts with windows": ("llama", {"num_draft_tokens": 4}),
    "drafts with state": ("llama", {"num_draft_tokens": 4}),
    "alone": ("llama", {}),
}
DRAFTS = {"drafts": "llama", "drafts with windows": "gemma3_text", "drafts with state": "lfm2"}


@pytest.fixture(scope="module", autouse=True)
def small_steps() -> Any:
    """Everything that is counted in hundreds of tokens is counted in dozens here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "CAPACITY_STEP", 16)
        patch.setattr(sizes, "LENGTH_CLASSES", (64, 160))
        patch.setattr(sizes, "GROWTH_CHARGED", 32)
        patch.setattr(KVCache, "step", 16)
        patch.setattr(drafting, "Pace", Eager)
        yield


@pytest.fixture(scope="module", params=MODELS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, small_steps: None) -> Any:
    architecture, options = MODELS[request.param]
    wider = {"head_dim": 32} if "kv_bits" in options else {}
    folder = tiny_model(architecture, tmp_path_factory.mktemp("models") / architecture, **wider)
    if request.param in DRAFTS:
        draft = tiny_model(DRAFTS[request.param], folder.parent / "draft", seed=8)
        options = {**options, "draft_model_path": str(draft)}
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "alone":
            run_one_at_a_time(patch)
        yield Bench(folder, msgspec.structs.replace(SMALL, **options))


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
    """Bytes of all rows, and of the caches of prompts under way and of a draft model, as their arrays have it."""
    caches, aside = [], 0
    for prompt in engine.scheduler.prefilling:
        layers = zip(engine.batch.groups.layout.kinds, leaves(prompt.cache or ()), strict=False)
        # What is computed in its slot lies in the batch.
        caches.append([leaf for kind, leaf in layers if prompt.slot is None or not kind.in_slots])
    decoding = engine.decoding
    if isinstance(decoding, SpeculativeDecoding) and isinstance(decoding.speculation.proposer, Either):
        drafter = decoding.speculation.proposer.other
        assert isinstance(drafter, DraftModel)
        aside = bytes_of(drafter)
    aside += sum(array.nbytes for cache in caches for array in arrays_of(cache))
    return engine.batch.groups.bytes + aside


def look_after(owner: Any, name: str, look: Callable[[], None]) -> None:
    """Have `look` called whenever this method is done."""
    method = getattr(owner, name)

    def looking(*given: Any, **named: Any) -> Any:
        found = method(*given, **named)
        look()
        return found

    setattr(owner, name, looking)


mixes = given(
    plan=plans,
    places=st.integers(60, 400),
    shrink_at=st.sampled_from([None, None, 12, 40]),
    overlaps=st.booleans(),
)
drawn = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],
)


@settings(drawn, max_examples=2)
@mixes
def test_no_mix_of_requests_takes_more_than_the_memory(
    bench: Bench, plan: list[Any], places: int, shrink_at: int | None, overlaps: bool
) -> None:
    look_on(bench, plan, places, shrink_at, overlaps=overlaps)


@pytest.mark.long
@settings(drawn, max_examples=40)
@mixes
def test_no_mix_of_many_takes_more_than_the_memory(
    bench: Bench, plan: list[Any], places: int, shrink_at: int | None, overlaps: bool
) -> None:
    look_on(bench, plan, places, shrink_at, overlaps=overlaps)


def look_on(bench: Bench, plan: list[Any], places: int, shrink_at: int | None, *, overlaps: bool) -> None:
    """Run the mix, look at what is held whenever that may have grown, and judge the answers."""
    engine = bench.new_engine(msgspec.structs.replace(bench.plan, overlaps=overlaps))
    limits = engine.scheduler.limits
    limits.memory = max(limits.sequence_bytes(places), limits.prompt_bytes(places))

    def look() -> None:
        assert held(engine) <= limits.memory

    look_after(engine.prefill, "compute", look)
    for method in ("forward", "check"):
        look_after(engine.batch, method, look)
    seen = watch(engine)
    asked: dict[str, tuple[tuple[int, ...], int, int]] = {}
    ended: dict[tuple[str, int], Failed | Finished] = {}
    arrivals, due = iter(enumerate(plan)), 0
    pending = next(arrivals, None)
    for step in range(6000):
        if step == shrink_at:
            engine.lifecycle.resize(limits.memory * 2 // 3)
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
        look()
        if not engine.busy and pending is None:
            break
    else:
        raise AssertionError("requests are left")
    for owner, (prompt, tokens, choices) in asked.items():
        for choice in range(choices):
            end = ended.get((owner, 0)) if isinstance(ended.get((owner, 0)), Failed) else ended[owner, choice]
            if isinstance(end, Finished):
                made = len(seen[owner, choice])
                fits = engine.scheduler.fits_alone(len(prompt) + made)
                assert made == tokens or not fits, "it was cut without need"
                if bench.options.kv_bits is None and choice == 0:
                    bench.judge(prompt, seen[owner, choice])
