"""Draft models with any kind of cache: they change no answer, and what they have read is what the sequences say.

A draft model with the model's own weights says what the model does, as long as its state is right: nearly all of its
proposals are accepted then, however many sequences there are.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.requests import Sampling
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.device import DevicePlan
from pippin.engines.language.kernels import ways
from pippin.engines.language.kv_cache import probe
from pippin.engines.language.kv_cache.groups import BatchedGroup
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.loading import drafting
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.engine import build_engine
from pippin.engines.language.step.engine import LanguageEngine
from tests.engines.language.architectures import any_architecture
from tests.engines.language.bench import (
    PLAN,
    Bench,
    Eager,
    judge_others_of_one_that_leaves,
    run_all,
    speculation_of,
)
from tests.engines.language.drafting import PHRASE, Prompts, bytes_of
from tests.engines.language.kv_cache.test_pooling import V4
from tests.engines.language.vision import any_family
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.tiny_models import ARCHITECTURES, tiny_model

Folders = Callable[..., Path]
KINDS = {
    "full attention": "llama",
    "sliding windows": "gemma3_text",
    "sliding windows with sinks": "gpt_oss",
    "recurrent layers": "qwen3_next",
    "recurrent layers with heads alike": "qwen3_5",
    "nothing but recurrent layers": "mamba2",
    "convolutions": "lfm2",
    "recurrent layers and experts": "granitemoehybrid",
    "recurrent layers, attention and plain ones": "nemotron_h",
    "latent vectors": "deepseek_v3",
    "latent vectors and an index": "deepseek_v32",
    "recurrent layers of a model that takes pictures": "qwen3_5_vision",
    "pooled keys": "deepseek_v4",
}
FAMILIES = {"deepseek_v4": V4}
BY_DAY = ("llama", "gemma3_text", "qwen3_next")
"""One of each way to take tokens back. LFM2's convolutions keep states as Qwen3-Next's layers do, and
`test_schedules.py` has it draft by day."""
AT_NIGHT = pytest.mark.long
RIGHT = 0.95  # of the proposals of the model itself: two logits may tie

pytestmark = pytest.mark.usefixtures("always")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A tiny model of an architecture; by another seed one of other weights."""
    root, made = tmp_path_factory.mktemp("models"), dict[tuple[str, int], Path]()

    def folder(architecture: str, seed: int = 7) -> Path:
        if (architecture, seed) not in made:
            made[architecture, seed] = written(architecture, root / str(seed) / architecture, seed)
        return made[architecture, seed]

    return folder


def written(architecture: str, folder: Path, seed: int) -> Path:
    if architecture in FAMILIES:
        return any_family.write(architecture, replace(FAMILIES[architecture], seed=seed), folder)
    if architecture.endswith("_vision"):
        return tiny_vision_model(architecture.removesuffix("_vision"), folder, seed=seed)
    write = tiny_model if architecture in ARCHITECTURES else any_architecture.write
    return write(architecture, folder, seed=seed)


@pytest.fixture(
    params=[
        pytest.param(name, id=kind, marks=() if name in BY_DAY else AT_NIGHT) for kind, name in KINDS.items()
    ]
)
def architecture(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def bench_of(model: Path, draft: Path | None, *, plan: DevicePlan = PLAN, **changes: Any) -> Bench:
    options = {"cache_block_tokens": 8, "num_draft_tokens": 4, **changes}
    return Bench(model, ModelOptions(draft_model_path=None if draft is None else str(draft), **options), plan)


def prompts_of(count: int, tokens: int = 24) -> Prompts:
    """Of one token, of more than a chunk, of more than a window, and some between."""
    lengths = (40, 1, 75, 13, 33, 7)
    return {
        f"r{place}": ((PHRASE * 7)[place : place + length], tokens + 3 * place)
        for place, length in enumerate(lengths[:count])
    }


def judge(bench: Bench, prompts: Prompts, answers: dict[tuple[str, int], list[int]]) -> None:
    for name, (prompt, count) in prompts.items():
        assert len(answers[name, 0]) == count
        bench.judge(prompt, answers[name, 0])


def share_accepted(bench: Bench, run: Callable[[], Any]) -> float:
    """Of what is proposed meanwhile."""
    before = bench.engine.stats()
    run()
    after = bench.engine.stats()
    proposed = after.draft_tokens - before.draft_tokens
    assert proposed
    return (after.accepted_tokens - before.accepted_tokens) / proposed


@pytest.mark.even
@pytest.mark.parametrize("count", [*(pytest.param(count, marks=AT_NIGHT) for count in (1, 2)), 4])
def test_the_model_as_its_own_draft_model_is_right(folders: Folders, architecture: str, count: int) -> None:
    """The second time, the prefix cache has most of the prompts, and the draft model reads them all the same."""
    bench = bench_of(folders(architecture), folders(architecture))
    prompts = prompts_of(count)

    def run() -> None:
        judge(bench, prompts, run_all(bench, prompts)[0])

    for _ in range(2):
        assert share_accepted(bench, run) >= RIGHT


@pytest.mark.even
@pytest.mark.parametrize(("seed", "temperature"), [(7, 0.5), pytest.param(8, 0.0, marks=AT_NIGHT)])
def test_what_is_proposed_is_what_the_draft_model_says_after_the_text(
    folders: Folders, architecture: str, seed: int, temperature: float
) -> None:
    """Where some of it is accepted, and where nothing is."""
    bench, own = bench_of(folders(architecture), folders(architecture, seed)), folders(architecture, seed)
    judge_of = Bench(own, ModelOptions()).judge
    drafter, judged = drafter_of(bench), Counter[int]()
    propose = drafter.propose

    def judging(wanted: Any) -> Any:
        found = propose(wanted)
        for (sequence, _), proposal in zip(wanted, found, strict=True):
            judge_of(tuple(sequence.tokens), proposal.tokens)
            judged[len(proposal.tokens)] += 1
        return found

    drafter.propose = judging
    run_all(bench, prompts_of(4, 12), sampling=Sampling(temperature=temperature, seed=3))
    stats = bench.engine.stats()
    assert judged[4] > 10
    assert stats.accepted_tokens < stats.draft_tokens


@pytest.mark.even
@pytest.mark.parametrize("seed", [7, pytest.param(8, marks=AT_NIGHT)])
def test_greedy_and_seeded_answers_are_those_without(folders: Folders, architecture: str, seed: int) -> None:
    drawn = Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1, seed=5)
    plain = bench_of(folders(architecture), None)
    drafting = bench_of(folders(architecture), folders(architecture, seed))
    for sampling in (Sampling(temperature=0), drawn):
        expected, found = (
            run_all(bench, prompts_of(3, 16), sampling=sampling)[0] for bench in (plain, drafting)
        )
        assert found == expected
    assert drafting.engine.stats().draft_tokens > 0


@pytest.mark.even
@pytest.mark.parametrize("step", [3, *(pytest.param(step, marks=AT_NIGHT) for step in (1, 2, 4, 6, 9))])
def test_sequences_that_leave_are_suspended_and_come_change_nothing(
    folders: Folders, architecture: str, step: int
) -> None:
    bench = bench_of(folders(architecture), folders(architecture))
    share = share_accepted(bench, lambda: judge_others_of_one_that_leaves(bench, prompts_of(4), step))
    assert share >= RIGHT
    drafter = drafter_of(bench)
    assert bytes_of(drafter) == 0


def drafter_of(bench: Bench) -> Any:
    proposer: Any = speculation_of(bench.engine).proposer
    return proposer.other


class InTurns(Eager):
    """Asks for nothing for so many steps, and then for as much as there is for as many."""

    turn = 12
    _asked = 0

    def lengths(self, chances: Sequence[float], available: Sequence[int]) -> list[int]:
        self._asked += 1
        return [0] * len(available) if self._asked // self.turn % 2 else list(available)


@pytest.mark.even
def test_sequences_that_were_not_asked_for_long_are_read_again(
    folders: Folders, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have more that is new then than a pass over all reads, and more than a chunk."""
    monkeypatch.setattr(drafting, "Pace", InTurns)
    monkeypatch.setattr(drafting, "MOST_NEW", 4)
    plan = msgspec.structs.replace(PLAN, prefill_chunk=8)
    bench = bench_of(folders(architecture), folders(architecture), plan=plan)
    prompts = prompts_of(4, 50)
    share = share_accepted(bench, lambda: judge(bench, prompts, run_all(bench, prompts)[0]))
    assert share >= RIGHT


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next"])
def test_all_sequences_are_drafted_for_in_one_pass_for_each_token(
    folders: Folders, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(folders(architecture), folders(architecture))
    drafter, passes = drafter_of(bench), Counter[int]()
    propose, forward = drafter.propose, BatchedGroup.forward

    def counting(group: BatchedGroup, *args: Any, **kwargs: Any) -> mx.array:
        passes[len(bench.engine.batch.running)] += group.model is drafter.model
        return forward(group, *args, **kwargs)

    drafts = Counter[int]()

    def noting(wanted: Any) -> Any:
        drafts[len(wanted)] += 1
        return propose(wanted)

    drafter.propose = noting
    monkeypatch.setattr(BatchedGroup, "forward", counting)
    run_all(bench, prompts_of(4, 60))
    assert drafts[4] >= 6
    assert passes[4] <= 4 * drafts[4]


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next", "deepseek_v3"])
def test_a_draft_model_takes_no_more_than_its_sequences_are_charged_for(
    folders: Folders, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "CAPACITY_STEP", 16)
    monkeypatch.setattr(sizes, "LENGTH_CLASSES", (40, 90))
    bench = bench_of(folders(architecture), folders(architecture), prefix_cache=False)
    drafter, engine = drafter_of(bench), bench.engine
    scheduler, propose, forget = engine.scheduler, drafter.propose, drafter.forget
    seen: list[int] = []

    def held() -> int:
        seen.append(bytes_of(drafter))
        return seen[-1]

    def proposing(wanted: Any) -> Any:
        found = propose(wanted)
        prompts = sum(scheduler._prompt_bytes(each.length, each.count) for each in scheduler.prefilling)
        assert held() <= scheduler.limits.memory - scheduler.for_running() - prompts
        return found

    def forgetting(sequence: Any) -> None:
        forget(sequence)
        left = [*drafter.slots.of, *drafter.reading]
        longest = max((len(each.tokens) for each in left), default=0)
        assert held() <= len(left) * scheduler._draft_bytes(longest)

    drafter.propose, drafter.forget = proposing, forgetting
    for name, (prompt, count) in prompts_of(6, 40).items():
        engine.submit(bench.job(name, prompt, count))
    while engine.busy:
        engine.step()
    assert len(set(seen)) > 5


class OnKernels(Bench):
    """The kernels for CPUs compute both models."""

    def new_engine(self, plan: DevicePlan) -> LanguageEngine:
        options = self.options, plan
        return build_engine(Asked(self.model, self.tokenizer, *options, self.folder, 2))


@pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
@pytest.mark.parametrize(
    "architecture",
    ["llama", "qwen3_next", *(pytest.param(name, marks=AT_NIGHT) for name in ("gemma3_text", "gpt_oss"))],
)
def test_the_kernels_compute_a_draft_model_as_they_compute_the_model(
    folders: Folders, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whole layers but for the recurrent ones. Texts of more than a chunk are read there, too."""
    monkeypatch.setattr(drafting, "MOST_NEW", 4)
    folder = folders(architecture)
    plan = msgspec.structs.replace(PLAN, kernels=True, prefill_chunk=16)
    options = ModelOptions(draft_model_path=str(folder), cache_block_tokens=8, num_draft_tokens=4)
    bench = OnKernels(folder, options, plan)
    whole = [ways.decoder_in(model) is not None for model in (drafter_of(bench).model, bench.model)]
    assert whole == [architecture != "qwen3_next"] * 2
    prompts = prompts_of(4)

    def run() -> None:
        answers, _ = run_all(bench, prompts)
        for name, (prompt, _) in prompts.items():
            bench.judge(prompt, answers[name, 0], 1e-2)

    assert share_accepted(bench, run) >= RIGHT
    judge_others_of_one_that_leaves(bench, prompts, 3)


def test_a_draft_model_that_cannot_be_batched_is_refused(folders: Folders) -> None:
    with pytest.raises(
        ServerError, match=r"'deepseek_v41' cannot be used: its caches cannot be batched\. Choose another"
    ):
        bench_of(folders("llama"), folders("deepseek_v41"))


def test_a_draft_model_that_fails_the_trial_of_taking_tokens_back_is_refused(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model itself is tried first."""
    tried: list[bool] = []

    def rewinds(*_: Any) -> bool:
        tried.append(not tried)
        return tried[-1]

    monkeypatch.setattr(probe.Trials, "rewinds", rewinds)
    with pytest.raises(ServerError, match="cannot take tokens back"):
        bench_of(folders("llama"), folders("llama"))
    assert tried == [True, False]
