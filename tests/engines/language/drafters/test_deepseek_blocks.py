"""DeepSeek V4's DSpark: what it proposes is what mlx-vlm's module drafts, and answers are the model's own."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_vlm.speculative.drafters import load_drafter
from mlx_vlm.speculative.drafters.deepseek_v4_dspark import Model, ModelConfig
from mlx_vlm.speculative.drafters.deepseek_v4_dspark.split import split_deepseek_v4_dspark

from pippin.config.options.model import ModelOptions
from pippin.core.requests import Sampling
from pippin.engines.language.drafters.deepseek_blocks import DeepseekBlockHead
from tests.engines.language.bench import Bench, judge_others_of_one_that_leaves, run_all
from tests.engines.language.drafting import PHRASE, drafts_of, judge_own_answers
from tests.engines.language.kv_cache.test_pooling import V4
from tests.engines.language.step.test_heads import heads_of
from tests.engines.language.tiny_heads import _written, spread
from tests.engines.language.vision.any_family import write

pytestmark = pytest.mark.usefixtures("always")

STAGES = 2
# The first is shorter than the window of 12 while it is answered, the second grows past it.
LENGTHS = (2, 9, 14, 40)
PROMPTS = {
    f"r{place}": (tuple((each * 17 + place) % 240 for each in range(length)), 9 + 2 * place)
    for place, length in enumerate(LENGTHS)
}
OWN: dict[str, Any] = {
    "dspark_target_layer_ids": [1, 3],
    "dspark_block_size": 4,
    "dspark_markov_rank": 8,
    "dspark_noise_token_id": 201,
    "num_nextn_predict_layers": STAGES,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_drafter(tmp_path_factory.mktemp("dspark") / "deepseek_v4")


def with_drafter(folder: Path) -> Path:
    """A checkpoint with its drafter under the names of the published ones, but for names within stages."""
    write("deepseek_v4", V4, folder)
    config = {**json.loads((folder / "config.json").read_text()), **OWN}
    drafter = Model(
        ModelConfig.from_dict(
            {
                "text_config": config,
                "n_mtp_layers": STAGES,
                "markov_rank": OWN["dspark_markov_rank"],
                "target_layer_ids": OWN["dspark_target_layer_ids"],
            }
        )
    )
    weights = {
        name.replace("stages.", "mtp.").replace("markov_head.", f"mtp.{STAGES - 1}.markov_head."): array
        for name, array in spread(drafter, 5).items()
    }
    return _written(folder, weights | mx.load(str(folder / "model.safetensors")), config)


@pytest.fixture(scope="module")
def split_off(folder: Path) -> Path:
    return split_deepseek_v4_dspark(str(folder), str(folder / "drafter"))


def bench_of(folder: Path, **changes: Any) -> Bench:
    return Bench(folder, ModelOptions(**{"cache_block_tokens": 8, "num_draft_tokens": 3, **changes}))


@pytest.mark.parametrize("cached", [False, True])
def test_it_proposes_what_mlx_vlm_drafts(folder: Path, split_off: Path, cached: bool) -> None:
    """Read from the model's checkpoint, it is compared with what mlx-vlm reads from the drafter that it split off."""
    bench = bench_of(folder, mtp=True, prefix_cache=cached)
    if cached:
        run_all(bench, PROMPTS)
    heads = heads_of(bench)
    assert isinstance(heads._head, DeepseekBlockHead)
    reference, _ = load_drafter(str(split_off))
    lengths, words = set(), set()
    for sequence, found in drafts_of(bench, heads, PROMPTS, 24):
        assert found == drafted(bench, reference, sequence.tokens, heads._followed[sequence].first)
        lengths.add(len(sequence.tokens) < V4.config["sliding_window"])
        words.update(found)
    assert lengths == {True, False}
    assert len(words) > 6, "it says different things"


def drafted(bench: Bench, reference: Any, tokens: list[int], first: int) -> list[int]:
    """By mlx-vlm's module, from the states that mlx-vlm takes of its model. The last state is given by itself: of
    several at once, its window would hold more."""
    language = bench.model.inner.language_model
    told = language(
        mx.array([tokens[:-1]]),
        cache=language.make_cache(),
        capture_layer_ids=reference.config.target_layer_ids,
    )
    hidden = mx.concatenate(told.hidden_states, axis=-1)[:, first:]
    cache = reference.reset(language)
    if hidden.shape[1] > 1:
        reference._hidden(mx.array([tokens[-1:]]), hidden[:, :-1], cache)
    likeliest = partial(mx.argmax, axis=-1)
    found: list[int] = reference.draft_block(tokens[-1], hidden[:, -1:], cache, 4, likeliest)[0].tolist()
    return found


def test_answers_are_the_models_own(folder: Path) -> None:
    judge_own_answers(bench_of(folder, mtp=True), PROMPTS)


def test_a_sequence_that_leaves_changes_nothing_for_the_others(folder: Path, split_off: Path) -> None:
    bench = bench_of(folder, draft_model_path=str(split_off))
    judge_others_of_one_that_leaves(bench, PROMPTS, 3)
    assert bench.engine.stats().draft_tokens > 0
    assert not heads_of(bench)._followed


def test_seeded_sampling_is_the_same_with_and_without(folder: Path) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)
    found = [
        run_all(bench_of(folder, mtp=mtp), {"a": (PHRASE * 2, 24)}, sampling=sampling)[0]
        for mtp in (False, True)
    ]
    assert found[0] == found[1]
