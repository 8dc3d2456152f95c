"""HY V4, mlx-vlm's alone: latent vectors beside an index, and layers that take another's choice of tokens."""

from pathlib import Path

import mlx.core as mx
import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.language.loading import drafting
from tests.engines.language.bench import Bench, Eager, judge_others_of_one_that_leaves, run_all
from tests.engines.language.vision.any_family import Family, write

HY_V4 = Family(
    config={
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "hc_mult": 2,
        "index_topk": 9,
        "index_head_dim": 16,
        "index_n_heads": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "indexer_types": ["full", "shared", "full", "full"],
    }
)
TEXT = tuple((place * 17 + place // 9) % 240 for place in range(90))
PROMPTS = {f"r{place}": (TEXT[place : place + length], 12) for place, length in enumerate((5, 18, 40, 61))}

pytestmark = pytest.mark.long  # mlx-vlm's compiled functions are compiled by a compiler on CPUs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("hy_v4", HY_V4, tmp_path_factory.mktemp("hy") / "hy_v4")


def test_sequences_of_a_batch_say_what_mlx_vlm_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    bench = Bench(folder, ModelOptions(cache_block_tokens=8, prompt_lookup=True, num_draft_tokens=3))
    language = bench.model.inner.language_model
    answers: dict[tuple[str, int], list[int]] = {}
    for known in (0, 56):  # the second time, the prefix cache has them, and what was said is predicted
        answers, ends = run_all(bench, PROMPTS, predicted=answers)
        assert ends["r3", 0].usage.cached_tokens == known
        for name, (prompt, _) in PROMPTS.items():
            answer = answers[name, 0]
            tokens = mx.array([(*prompt, *answer[:-1])])
            logits = language(tokens, cache=language.make_cache()).logits[0, len(prompt) - 1 :]
            said = mx.take_along_axis(logits, mx.array(answer)[:, None], axis=-1)
            assert (logits.max(axis=-1, keepdims=True) - said).max() < 1e-3
    judge_others_of_one_that_leaves(bench, PROMPTS, 3)
    assert bench.engine.stats().accepted_tokens > 0
