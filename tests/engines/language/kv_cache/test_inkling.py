"""Inkling's sequences run together: what they answer is what mlx-vlm's model says next, each by itself."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_vlm.utils import load as mlx_vlm_load

from pippin.config.options.model import ModelOptions
from pippin.engines.language.loading import drafting
from pippin.engines.language.upstream.mlx_vlm.inkling import Attention
from tests.engines.language.bench import Bench, Eager, judge_others_of_one_that_leaves, run_all
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES

TEXT = tuple((place * 17 + place // 9) % 240 for place in range(150))
PROMPTS = {f"r{place}": (TEXT[place : place + length], 14) for place, length in enumerate((1, 3, 40, 101))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("inkling", FAMILIES["inkling"], tmp_path_factory.mktemp("inkling") / "inkling")


@pytest.fixture(scope="module")
def by_mlx_vlm(folder: Path) -> Callable[[tuple[int, ...]], mx.array]:
    """Its own model's logits [tokens, vocabulary], with its own caches, in one pass."""
    model, _ = mlx_vlm_load(folder)
    language = model.language_model
    assert not any(isinstance(module, Attention) for module in language.modules())

    def logits(tokens: tuple[int, ...]) -> mx.array:
        found: mx.array = language(mx.array([tokens]), cache=language.make_cache()).logits
        return found[0]

    return logits


@pytest.mark.parametrize("most", [0, pytest.param(4, marks=pytest.mark.long)])
def test_sequences_of_a_batch_say_what_mlx_vlm_says(
    folder: Path,
    by_mlx_vlm: Callable[[tuple[int, ...]], mx.array],
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    given = {"prompt_lookup": True, "num_draft_tokens": most} if most else {}
    bench = Bench(folder, ModelOptions(cache_block_tokens=8, **given))  # type: ignore[arg-type]
    answers: dict[tuple[str, int], list[int]] = {}
    for known in (0, 96):  # the second time, the prefix cache has them, and what was said is predicted
        answers, ends = run_all(bench, PROMPTS, predicted=answers if most else None)
        assert ends["r3", 0].usage.cached_tokens == known
        for name, (prompt, _) in PROMPTS.items():
            answer = answers[name, 0]
            logits = by_mlx_vlm((*prompt, *answer[:-1]))[len(prompt) - 1 :]
            said = mx.take_along_axis(logits, mx.array(answer)[:, None], axis=-1)
            assert (logits.max(axis=-1, keepdims=True) - said).max() < 1e-3
    judge_others_of_one_that_leaves(bench, PROMPTS, 3)
    assert (bench.engine.stats().accepted_tokens > 0) == (most > 0)
