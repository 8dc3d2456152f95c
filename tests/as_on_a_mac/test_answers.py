"""In 16 bits on a GPU, a token of an answer is another in a batch only where the two best are as good as equal."""

from typing import Any

import mlx.core as mx
import msgspec
import pytest
from mlx_lm.models.cache import make_prompt_cache

from pippin.config.options.model import ModelOptions
from pippin.engines.device import decide
from tests.as_on_a_mac.gpu import Gpu, compute_as_a_gpu
from tests.as_on_a_mac.mac import Mac, tie
from tests.engines.language.bench import PLAN, Bench, run_all
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


def test_in_float32_answers_are_the_same(models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_as_a_gpu(monkeypatch.setattr, Gpu(rows=ROWS))
    plan = decide(Mac().facts, ModelOptions(dtype="float32"))
    assert not plan.dequantize, "weights stay packed"
    plan = msgspec.structs.replace(PLAN, run_type=plan.run_type, dequantize=plan.dequantize)
    bench = Bench(models("llama"), ModelOptions(prefix_cache=False), plan)
    asked = {f"r{row}": (prompt(row), TOKENS // 2) for row in range(ROWS)}
    together, _ = run_all(bench, asked, ignore_eos=True)
    for name, given in asked.items():
        assert run_all(bench, {name: given}, ignore_eos=True)[0][name, 0] == together[name, 0]
