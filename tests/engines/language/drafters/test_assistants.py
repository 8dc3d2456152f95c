"""Gemma 4's assistants: what they propose is what mlx-vlm's module drafts, and answers are the model's own."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.requests import Sampling
from pippin.engines.language.step.speculation.assistants import Assistants
from tests.engines.language.bench import Bench, follower_of, judge_others_of_one_that_leaves, run_all
from tests.engines.language.drafting import PHRASE, held, judge_own_answers, prompts_of
from tests.engines.language.tiny_heads import ASSISTANT, ORDERED, assistant_head, gemma_model
from tests.engines.tiny_models import tiny_model

PROMPTS = prompts_of(12)
pytestmark = pytest.mark.usefixtures("always")


@dataclass(frozen=True)
class Pair:
    model: Path
    assistant: Path

    def bench(self, *, drafts: bool = True, **changes: Any) -> Bench:
        path = str(self.assistant) if drafts else None
        given = {"cache_block_tokens": 8, "num_draft_tokens": 3, "draft_model_path": path, **changes}
        return Bench(self.model, ModelOptions(**given))


@pytest.fixture(scope="module", params=[{}, ORDERED], ids=["whole vocabulary", "ordered embeddings"])
def any_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    root = tmp_path_factory.mktemp("assistants")
    model, _ = gemma_model(root / "model")
    return Pair(model, assistant_head(root / "assistant", {**ASSISTANT, **request.param}))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    root = tmp_path_factory.mktemp("assistant")
    model, _ = gemma_model(root / "model")
    return Pair(model, assistant_head(root / "assistant", {**ASSISTANT, **ORDERED}))


def assistants_of(bench: Bench) -> Assistants:
    found = follower_of(bench.engine)
    assert isinstance(found, Assistants)
    return found


def test_mlx_vlms_name_for_an_assistant_is_taken_and_another_refused(pair: Pair) -> None:
    assistants_of(pair.bench(draft_kind="mtp"))
    with pytest.raises(ServerError, match="draft_kind says 'eagle3'"):
        pair.bench(draft_kind="eagle3")


def test_an_assistant_gives_the_models_own_answer(pair: Pair) -> None:
    bench = pair.bench()
    judge_own_answers(bench, PROMPTS)


@pytest.mark.even
@pytest.mark.parametrize("cached", [False, pytest.param(True, marks=pytest.mark.long)])
def test_it_proposes_what_mlx_vlm_drafts(any_pair: Pair, cached: bool) -> None:
    bench = any_pair.bench(prefix_cache=cached)
    if cached:
        run_all(bench, PROMPTS)
    assistants = assistants_of(bench)
    for name, (prompt, count) in list(PROMPTS.items())[1:]:
        bench.engine.submit(bench.job(name, prompt, count))
    compared = 0
    while bench.engine.busy and compared < 9:
        bench.engine.step()
        running = [each for each in bench.engine.batch.running if assistants.is_ready(each.sequence)]
        if len(running) < 3:
            continue
        proposed = assistants.propose([(each.sequence, 3) for each in running])
        for each, (found, *_) in zip(running, proposed, strict=True):
            assert found == drafted(bench, assistants, each.sequence.tokens)
            compared += 1
    assert compared >= 9


def drafted(bench: Bench, assistants: Assistants, tokens: list[int]) -> list[int]:
    """What mlx-vlm's module says after these tokens, shown what the model alone keeps of them, token by token."""
    cache, known = make_prompt_cache(bench.model), len(tokens) - 1
    for token in tokens[:-1]:
        bench.model(mx.array([[token]]), cache=cache)
    state = assistants.states.take()
    sliding, full = cache[2:4]
    lent = {
        "full_attention": (full.keys[..., :known, :], full.values[..., :known, :]),
        "sliding_attention": tuple(map(sliding._temporal_order, (sliding.keys, sliding.values))),
    }
    inner = assistants.assistant.inner
    inner.set_shared_kv(lent, known, position=known - 1, kv_valid_len=known)
    likeliest = partial(mx.argmax, axis=-1)
    found: list[int] = inner.draft_block(tokens[-1], state[:, -1:], None, 4, likeliest, greedy=True)[
        0
    ].tolist()
    return found


@pytest.mark.even
def test_seeded_sampling_is_the_same_with_and_without(pair: Pair) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)
    found = [
        run_all(pair.bench(drafts=drafts), {"a": (PHRASE * 2, 24)}, sampling=sampling)[0]
        for drafts in (False, True)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 3])
def test_a_sequence_that_leaves_changes_nothing_for_the_others(pair: Pair, step: int) -> None:
    bench = pair.bench()
    judge_others_of_one_that_leaves(bench, PROMPTS, step)
    assistants = assistants_of(bench)
    assert not held(assistants)


def test_most_is_accepted_of_an_assistant_that_says_what_its_model_says(tmp_path: Path) -> None:
    """Layers that add nothing to the embeddings, and an assistant with the model's own."""
    mute = {
        f"model.layers.{layer}.post_{part}_layernorm.weight": mx.zeros((64,))
        for layer in range(5)
        for part in ("attention", "feedforward")
    }
    model, weights = gemma_model(tmp_path / "model", mute)
    text = {**ASSISTANT["text_config"], "hidden_size": 64}
    same = {name: array for name, array in mute.items() if int(name.split(".")[2]) < 3}
    same |= {
        "model.embed_tokens.weight": weights["model.embed_tokens.weight"],
        "model.norm.weight": weights["model.norm.weight"],
        "pre_projection.weight": mx.concatenate([mx.eye(64), mx.zeros((64, 64))], axis=1),
    }
    assistant = assistant_head(tmp_path / "assistant", {**ASSISTANT, "text_config": text}, same)
    bench = Pair(model, assistant).bench(prefix_cache=False)
    answers, _ = run_all(bench, PROMPTS)
    for name, (prompt, _) in PROMPTS.items():
        bench.judge(prompt, answers[name, 0])
    stats = bench.engine.stats()
    assert stats.accepted_tokens > 0.8 * stats.draft_tokens > 0


def test_an_assistant_of_another_model_is_refused(tmp_path: Path) -> None:
    model, _ = gemma_model(tmp_path / "model")
    other = assistant_head(tmp_path / "other", {**ASSISTANT, "backbone_hidden_size": 48})
    with pytest.raises(ServerError, match="was made for another model: it starts from states of 48"):
        Pair(model, other).bench()
    text = {**ASSISTANT["text_config"], "global_head_dim": 16}
    wider = assistant_head(tmp_path / "wider", {**ASSISTANT, "text_config": text})
    with pytest.raises(ServerError, match="cannot attend to what this model keeps"):
        Pair(model, wider).bench()
    llama = tiny_model("llama", tmp_path / "llama")
    with pytest.raises(ServerError, match="cannot attend to what this model keeps"):
        Pair(llama, assistant_head(tmp_path / "assistant", ASSISTANT)).bench()
