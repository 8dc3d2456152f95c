"""A tiny model with an engine around it, and the model alone as the judge of its answers."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import mlx.nn as nn
import msgspec
import pytest

from pippin.config.options.model import ModelOptions, asked_type, cache_bits
from pippin.core.events import Accepted, Failed, Finished
from pippin.core.models import ModelInfo
from pippin.core.requests import GenerationRequest, Sampling
from pippin.engines.device import DevicePlan
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.kv_cache import probe
from pippin.engines.language.kv_cache.probe import Batching
from pippin.engines.language.loading import caching
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.engine import build_engine
from pippin.engines.language.model.adapter_files import is_low_rank
from pippin.engines.language.model.weights import load_weights
from pippin.engines.language.step.engine import Decoding, LanguageEngine, SpeculativeDecoding
from pippin.engines.language.step.speculation.pace import Pace
from pippin.engines.language.step.speculation.verification import Speculation
from pippin.engines.language.text.tokenizer import Tokenizer
from tests.as_on_a_mac.mac import chosen_mac
from tests.as_on_a_mac.mac import tie as tie_of_halves
from tests.engines.language.roundings import own_logits

MAC = chosen_mac()
PLAN = DevicePlan(
    run_type="float32",
    dequantize=True,
    prefill_chunk=32,
    wired_limit=None,
    allocator_cache=1 << 26,
    memory_limit=1 << 30,
)
if MAC is not None:
    small = {"run_type": "bfloat16", "prefill_chunk": 32, "allocator_cache": 1 << 26, "memory_limit": 1 << 30}
    PLAN = msgspec.structs.replace(MAC.plan, **small)
TIE = 1e-3  # logits closer than this may come in either order, in float32


Tried = dict[object, Batching]
"""What the trials of one loaded model have found, by what they depend on."""


@contextmanager
def tried_once(found: Tried) -> Iterator[None]:
    """The model of engines that are built meanwhile is tried for the first of them alone: the trials take longer than
    most answers of a tiny model, and find the same. What they find of a folder is kept as between two starts, in the
    home of this run, unless a test has changed what they find."""

    def choose(
        model: nn.Module, options: ModelOptions, named: str | None, launch_bytes: int | None
    ) -> Batching:
        asked = (asked_type(options), cache_bits(options), options.kv_group_size)
        # Tests give a model other caches, or have it found that nothing runs together.
        tested = id(model), vars(model).get("make_cache"), probe._find_batches is none_together
        key = (*asked, launch_bytes, options.cache_block_tokens, options.num_draft_tokens, *tested)
        if key not in found:
            as_it_is = tested[1:] == (None, False)
            found[key] = probe.choose_batching(model, options, named if as_it_is else None, launch_bytes)
        return found[key]

    with patch.object(caching, "choose_batching", choose):
        yield


class Bench:
    def __init__(self, folder: Path, options: ModelOptions, plan: DevicePlan = PLAN) -> None:
        info = ModelInfo(id="tiny", kind="language", path=str(folder), architecture=folder.name)
        folders = [*options.adapters.values(), *filter(None, [options.adapter_path])]
        threads = 1 if all(map(is_low_rank, folders)) else None
        self.model, _ = load_weights(info, plan, lambda *_: None, kernel_threads=threads)
        self.tokenizer = Tokenizer.load(folder)
        self.folder, self.options, self.plan = folder, options, plan
        self.tried: Tried = {}
        self.engine = self.new_engine(plan)

    def new_engine(self, plan: DevicePlan) -> LanguageEngine:
        with tried_once(self.tried):
            return build_engine(Asked(self.model, self.tokenizer, self.options, plan, self.folder))

    def job(
        self, name: str, prompt: tuple[int, ...], max_tokens: int, *, key: bytes = b"", **request: Any
    ) -> LanguageJob:
        sampling = request.pop("sampling", Sampling(temperature=0))
        return LanguageJob(
            id=name,
            request=GenerationRequest(model="tiny", sampling=sampling, **request),
            accepted=Accepted(len(prompt)),
            prompt=prompt,
            max_tokens=max_tokens,
            created=time.monotonic(),
            key=key,
        )

    def judge(self, prompt: tuple[int, ...], answer: list[int], tie: float = TIE) -> None:
        """Every token is what the model alone would say next, or ties with it.

        One pass over all of them tells that of most answers. It sums in another order than the model does step by step,
        which is asked where the pass finds a token that is behind, and as on a Mac in other roundings too.
        """
        if not answer:
            return
        leads = mx.full((len(answer),), math.inf)
        for logits in own_logits(self.model, prompt, answer):
            said = mx.take_along_axis(logits, mx.array(answer)[:, None], axis=-1)
            behind = (logits.max(axis=-1, keepdims=True) - said)[:, 0]
            leads = mx.minimum(leads, behind / (tie if MAC is None else tie_of_halves(logits)))
            if (leads < 1).all():  # none is no number
                return
        place = (~(leads < 1)).astype(mx.int32).argmax().item()
        raise AssertionError(
            f"token {place} of {len(answer)} is behind by {leads[place].item():.3} times a tie"
        )


def speculation_of(engine: LanguageEngine) -> Speculation:
    """What asks for proposals in an engine that can have some."""
    assert isinstance(engine.decoding, SpeculativeDecoding)
    return engine.decoding.speculation


def follower_of(engine: LanguageEngine) -> Any:
    """The draft head or the assistant that follows the model's passes."""
    [found] = speculation_of(engine).followers
    return found


def propose_nothing(engine: LanguageEngine) -> None:
    """Let all further steps be plain ones."""
    engine.decoding = Decoding(engine.batch, engine.lifecycle, engine.scheduler, engine.counters)


def watch(engine: LanguageEngine) -> dict[tuple[str, int], list[int]]:
    """Each row's tokens, noted as the engine accepts them."""
    watched: dict[tuple[str, int], list[int]] = {}
    accept = engine.lifecycle.accept

    def noting(running: Any, sampled: Any) -> None:
        sequence = running.sequence
        watched.setdefault((sequence.request.job.id, sequence.choice), []).append(sampled.token)
        accept(running, sampled)

    engine.lifecycle.accept = noting  # type: ignore[method-assign]
    return watched


def run_all(
    bench: Bench,
    prompts: dict[str, tuple[tuple[int, ...], int]],
    *,
    key: bytes = b"",
    predicted: Mapping[tuple[str, int], list[int]] | None = None,
    **request: Any,
) -> tuple[dict[tuple[str, int], list[int]], dict[tuple[str, int], Finished]]:
    """Submit all at once and run to the end: every row's tokens, and how it ended. `predicted` has the answers of an
    earlier run, which are proposed."""
    engine = bench.engine
    accept = engine.lifecycle.accept
    watched = watch(engine)
    for name, (prompt, tokens) in prompts.items():
        job = bench.job(name, prompt, tokens, key=key, **request)
        engine.submit(msgspec.structs.replace(job, prediction=tuple((predicted or {}).get((name, 0), ()))))
    ends = {}
    while engine.busy:
        for name, event in engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Finished):
                ends[name, event.choice] = event
    engine.lifecycle.accept = accept  # type: ignore[method-assign]
    return watched, ends


class Eager(Pace):
    """Proposes as much as there is in every step, whether it pays or not."""

    def lengths(self, chances: Sequence[float], available: Sequence[int]) -> list[int]:
        return list(available)

    def worth_looking(self, chances: Sequence[float]) -> bool:
        return True


def judge_others_of_one_that_leaves(
    bench: Bench, prompts: dict[str, tuple[tuple[int, ...], int]], step: int
) -> None:
    """Cancel `r1` of three sequences after so many steps, suspend another, let `r3` join, and judge the answers to the
    three that stay. `prompts`: tokens and the length of the answer of `r0` to `r3`."""
    engine, answers = bench.engine, watch(bench.engine)
    for name in ("r0", "r1", "r2"):
        engine.submit(bench.job(name, *prompts[name]))
    for _ in range(step):
        engine.step()
    engine.cancel("r1")
    if engine.batch.running:
        engine.lifecycle.suspend(engine.batch.running[-1])
    engine.submit(bench.job("r3", *prompts["r3"]))
    while engine.busy:
        engine.step()
    for name in ("r0", "r2", "r3"):
        assert len(answers[name, 0]) == prompts[name][1]
        bench.judge(prompts[name][0], answers[name, 0])


def run_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the sequences of models run one at a time."""
    monkeypatch.setattr(probe, "_find_batches", none_together)


def none_together(*_: object, **__: object) -> None:
    """What trials find of a model whose sequences cannot run together."""
