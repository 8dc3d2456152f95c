"""Models whose sequences run one at a time say what they say alone, and refuse to check proposals."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import ConcatenateKVCache
from mlx_lm.utils import load_model
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache.solo_group import SoloGroup
from tests.engines.language.architectures.any_architecture import write
from tests.engines.language.bench import Bench, judge_others_of_one_that_leaves, run_all, run_one_at_a_time
from tests.engines.language.drafting import prompts_of
from tests.engines.tiny_models import TinyModels

PROMPTS = prompts_of(24)
SOLO = (
    "llama",
    "gemma3_text",
    "qwen3_next",
    "mamba2",
    "longcat_flash_ngram",
    "llama4",
    "gpt_bigcode",
    "concatenating",
    "deepseek_v41",
)
"""Keys and values, windows, states, lists of several caches, chunks, and caches of a model's own class."""
Opened = Callable[..., Bench]


@pytest.fixture(scope="module")
def own_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("deepseek_v41", tmp_path_factory.mktemp("models") / "deepseek_v41")


@pytest.fixture
def opened(tiny_models: TinyModels, own_classes: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A model whose sequences run one at a time, with the caches that mlx-lm makes."""
    run_one_at_a_time(monkeypatch)

    def bench(name: str) -> Bench:
        folder = (
            own_classes
            if name == "deepseek_v41"
            else tiny_models("llama" if name == "concatenating" else name)
        )
        found = Bench(folder, ModelOptions())
        found.model, _ = load_model(folder)
        if name == "concatenating":
            found.model.make_cache = lambda: [ConcatenateKVCache() for _ in found.model.layers]
        found.engine = found.new_engine(found.plan)
        return found

    return bench


@pytest.mark.parametrize("name", SOLO)
def test_a_sequence_that_leaves_or_is_suspended_changes_no_other(opened: Opened, name: str) -> None:
    bench = opened(name)
    assert isinstance(bench.engine.batch.groups._new_group(), SoloGroup)
    judge_others_of_one_that_leaves(bench, PROMPTS, 3)


def test_a_prediction_changes_no_answer(opened: Opened) -> None:
    bench = opened("gemma3_text")
    prompt, count = PROMPTS["r1"]
    expected, _ = run_all(bench, {"a": (prompt, count)})
    answers: list[Any] = []
    bench.engine.submit(replace(bench.job("b", prompt, count), prediction=tuple(expected["a", 0])))
    while bench.engine.busy:
        answers += bench.engine.step()
    assert answers[-1][1].usage.completion_tokens == count
    assert bench.engine.stats().draft_tokens == 0


@pytest.mark.parametrize("asked", ["prompt_lookup", "draft_model_path"])
def test_proposals_are_refused_by_the_option_that_asks_for_them(
    opened: Opened, tiny_models: TinyModels, asked: str
) -> None:
    bench = opened("llama")
    value: Any = True if asked == "prompt_lookup" else str(tiny_models("llama"))
    bench.options = ModelOptions(**{asked: value})
    with pytest.raises(ServerError, match="run one at a time") as caught:
        bench.new_engine(bench.plan)
    assert caught.value.report.param == asked
