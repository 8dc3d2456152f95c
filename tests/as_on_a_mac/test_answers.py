"""In 16 bits on a GPU, a token of an answer is another in a batch only where the two best are as good as equal."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from pippin.config.options.model import ModelOptions
from pippin.core.requests import JsonObject, Sampling
from pippin.engines.device import decide
from pippin.engines.language.constraints.grammar import GrammarCompiler
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.sampling.sampler import SampledToken
from pippin.engines.language.step.sequences import Running
from tests.as_on_a_mac.gpu import Gpu, compute_as_a_gpu
from tests.as_on_a_mac.mac import Mac, tie
from tests.engines.language.bench import PLAN, Bench, run_all
from tests.engines.language.model.test_lora import adapter
from tests.engines.tiny_models import TinyModels

ROWS = 6  # from which Metal multiplies otherwise, on the chips that do so soonest
TOKENS = 24
Answers = dict[tuple[str, int], list[int]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Checkpoints as a Mac has them: 4 bits, with scales in bfloat16."""
    return TinyModels(tmp_path_factory.mktemp("mac"), Mac(form="4bit"))


def prompt(row: int) -> tuple[int, ...]:
    return tuple((row * 31 + place * 7) % 250 + 1 for place in range(20 + row))


def first_difference(one: list[int], other: list[int]) -> int | None:
    return next(
        (place for place, pair in enumerate(zip(one, other, strict=True)) if len(set(pair)) > 1), None
    )


def lead(bench: Bench, given: tuple[int, ...], said: list[int], chosen: list[int]) -> tuple[float, float]:
    """How far two tokens are apart after these, in the model's own logits, and how far they may be. What was said is
    computed token by token, as it was: one pass over all of it may differ by a whole logit in 16 bits."""
    cache = make_prompt_cache(bench.model)
    for tokens in (given, *((token,) for token in said)):
        logits = bench.model(mx.array([tokens]), cache=cache)[0, -1].astype(mx.float32)
    return abs(float(logits[chosen[0]] - logits[chosen[1]])), tie(logits)


@pytest.mark.parametrize(
    "architecture",
    [
        "llama",
        pytest.param("qwen3", marks=pytest.mark.long),
        pytest.param("gemma3_text", marks=pytest.mark.long),
    ],
)
def test_tokens_differ_only_where_rounding_decides(
    architecture: str, models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_as_a_gpu(monkeypatch.setattr, Gpu(rows=ROWS))
    plan = msgspec.structs.replace(PLAN, run_type=None, dequantize=False)
    bench = Bench(models(architecture), ModelOptions(prefix_cache=False), plan)
    asked: dict[str, Any] = {f"r{row}": (prompt(row), TOKENS) for row in range(8)}
    together, _ = run_all(bench, asked, ignore_eos=True)
    differences = 0
    for name, (given, tokens) in asked.items():
        alone: Answers = run_all(bench, {name: (given, tokens)}, ignore_eos=True)[0]
        place = first_difference(alone[name, 0], together[name, 0])
        if place is not None:
            differences += 1
            answers = [alone[name, 0], together[name, 0]]
            apart, most = lead(bench, given, answers[0][:place], [each[place] for each in answers])
            assert apart < most, f"{name}: token {place} is behind by {apart}, where {most} is rounding"
    assert differences < len(asked)


def test_exact_answers_and_their_logprobs_are_the_same(
    models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and drawn, with adapters, with a grammar, with proposals."""
    compute_as_a_gpu(monkeypatch.setattr, Gpu(rows=ROWS))
    adapters = {"one": str(adapter(tmp_path / "one", 4, 4))}
    options = ModelOptions(exact=True, prefix_cache=False, prompt_lookup=True, adapters=adapters)
    plan = decide(Mac().facts, options)
    assert not plan.dequantize, "weights stay packed"
    plan = msgspec.structs.replace(PLAN, run_type=plan.run_type, dequantize=plan.dequantize)
    bench = Bench(models("llama"), options, plan)
    grammar = GrammarCompiler(bench.tokenizer).compile(JsonObject())

    def job(row: int) -> LanguageJob:
        asked: dict[str, Any] = {"adapter": "one" if row % 2 else None, "logprobs": 0}
        if row > 2:
            asked["sampling"] = Sampling(temperature=0.8, top_p=0.9, seed=row)
        found = bench.job(str(row), prompt(row), TOKENS // 2, ignore_eos=row != 4, **asked)
        return msgspec.structs.replace(found, grammar=grammar if row == 4 else None)

    together = drawn(bench, *map(job, range(ROWS)))
    for row in range(ROWS):
        alone = drawn(bench, job(row))[row]
        assert len(alone) > 3
        assert np.array(alone) == pytest.approx(np.array(together[row]), abs=1e-4)


def drawn(bench: Bench, *jobs: LanguageJob) -> dict[int, list[list[float]]]:
    """The tokens of these jobs with their logprobs."""
    found: dict[int, list[list[float]]] = {}
    accept = bench.engine.lifecycle.accept

    def noting(running: Running, sampled: SampledToken) -> None:
        noted = found.setdefault(int(running.sequence.request.job.id), [])
        noted.append([sampled.token, sampled.logprob or 0])
        accept(running, sampled)

    with patch.object(bench.engine.lifecycle, "accept", noting):
        for job in jobs:
            bench.engine.submit(job)
        while bench.engine.busy:
            bench.engine.step()
    return found
