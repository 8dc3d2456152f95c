"""Heads behind a model's last layer: what they propose is what their formula says, and answers are the model's own."""

import json
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.requests import Sampling
from pippin.engines.language.drafters.layers import FAMILIES, open_layer_head
from pippin.engines.language.drafters.loading import find_kind, refusals_name
from pippin.engines.language.loading import drafting
from pippin.engines.language.step.speculation.heads import Heads
from tests.engines.language.bench import Bench, Eager, follower_of, judge_others_of_one_that_leaves, run_all
from tests.engines.language.drafters.tiny_layers import CONFIGURATIONS, Oracle, checkpoint
from tests.engines.language.drafting import PHRASE, drafts_of, held, judge_own_answers, prompts_of

PROMPTS = prompts_of(12)
pytestmark = pytest.mark.usefixtures("always", "few_layers")


@dataclass(frozen=True)
class Made:
    architecture: str
    folder: Path
    head: dict[str, mx.array]

    def bench(self, **changes: object) -> Bench:
        given = {"cache_block_tokens": 8, "num_draft_tokens": 3, "mtp": True, **changes}
        return Bench(self.folder, ModelOptions(**given))


QUICK = "glm4_moe_lite"
"""The one with latent vectors, of which all tests are run with the others of the suite."""

EACH = [name if name == QUICK else pytest.param(name, marks=pytest.mark.long) for name in sorted(FAMILIES)]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def any_made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, head = checkpoint(request.param, tmp_path_factory.mktemp("layers") / request.param)
    return Made(request.param, folder, head)


@pytest.fixture(scope="module", params=EACH)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, head = checkpoint(request.param, tmp_path_factory.mktemp("layers") / request.param)
    return Made(request.param, folder, head)


def heads_of(bench: Bench) -> Heads:
    found: Heads = follower_of(bench.engine)
    return found


def test_a_head_gives_the_models_own_answer(made: Made) -> None:
    bench = made.bench()
    judge_own_answers(bench, PROMPTS)


@pytest.mark.float32
def test_it_proposes_what_its_formula_says(any_made: Made) -> None:
    bench = any_made.bench()
    heads, oracle = heads_of(bench), Oracle(any_made.architecture, any_made.head, bench.model)
    for sequence, found in drafts_of(bench, heads, PROMPTS, 9):
        tokens, first = sequence.tokens, heads.followed[sequence].first
        bench.model(mx.array([tokens[:-1]]), cache=make_prompt_cache(bench.model))
        assert found == oracle.draft(tokens[first:], heads.states.take()[0, first:], 3)


@pytest.mark.float32  # latent vectors: a step of one token is computed otherwise than one of several
def test_seeded_sampling_is_the_same_with_and_without(made: Made) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)
    found = [
        run_all(made.bench(mtp=mtp), {"a": (PHRASE * 2, 24)}, sampling=sampling)[0] for mtp in (False, True)
    ]
    assert found[0] == found[1]


def test_a_sequence_that_leaves_changes_nothing_for_the_others(made: Made) -> None:
    bench = made.bench()
    judge_others_of_one_that_leaves(bench, PROMPTS, 2)
    assert not held(heads_of(bench))


@pytest.mark.parametrize("architecture", EACH)
def test_most_is_accepted_of_a_head_that_says_what_its_model_says(architecture: str, tmp_path: Path) -> None:
    folder, head = checkpoint(architecture, tmp_path, predictable=True)
    bench = Made(architecture, folder, head).bench(prefix_cache=False)
    answers, _ = run_all(bench, PROMPTS)
    for name, (prompt, _) in PROMPTS.items():
        bench.judge(prompt, answers[name, 0])
    stats = bench.engine.stats()
    assert stats.accepted_tokens > 0.8 * stats.draft_tokens > 0


def test_weights_in_eight_bits_floating_become_what_the_model_would_make_of_them(tmp_path: Path) -> None:
    folder, head = checkpoint("deepseek_v3", tmp_path)
    path, name = folder / "model.safetensors", "model.layers.3.self_attn.o_proj.weight"
    weights = mx.load(str(path))
    weights |= {name: mx.to_fp8(weights[name]), f"{name}_scale_inv": mx.array([[2.0]])}
    mx.save_safetensors(str(path), weights, {"format": "pt"})
    inner = open_layer_head(folder, json.loads((folder / "config.json").read_text())).inner
    expected = 2 * head["layer.self_attn.o_proj.weight"]
    assert mx.abs(inner.layer.self_attn.o_proj.weight - expected).max() < 0.07 * mx.abs(expected).max()


def test_a_checkpoint_without_its_head_is_refused_with_the_way_out(tmp_path: Path) -> None:
    folder, _ = checkpoint("glm4_moe", tmp_path)
    path = folder / "model.safetensors"
    kept = {name: array for name, array in mx.load(str(path)).items() if "model.layers.3." not in name}
    mx.save_safetensors(str(path), kept)
    with (
        pytest.raises(
            ServerError, match="has no head for multi-token prediction: most converted models"
        ) as refused,
        refusals_name("mtp"),
    ):
        find_kind(folder, own=True)
    assert refused.value.report.param == "mtp"


def test_a_head_with_a_weight_missing_is_refused(tmp_path: Path) -> None:
    folder, head = checkpoint("glm4_moe", tmp_path)
    path = folder / "model.safetensors"
    mx.save_safetensors(
        str(path),
        {name: array for name, array in mx.load(str(path)).items() if "hnorm" not in name},
    )
    with pytest.raises(ServerError, match="cannot be loaded: ValueError: Missing 1 parameters"):
        Made("glm4_moe", folder, head).bench()


@pytest.mark.long
def test_a_model_of_deepseeks_own_depth_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # mlx-lm as it is
    monkeypatch.setattr(drafting, "Pace", Eager)
    monkeypatch.setitem(CONFIGURATIONS["deepseek_v3"], "num_hidden_layers", 61)
    folder, head = checkpoint("deepseek_v3", tmp_path)
    bench = Made("deepseek_v3", folder, head).bench(prefix_cache=False)
    prompt, _ = PROMPTS["r0"]
    answers, _ = run_all(bench, {"r0": (prompt, 6)})
    bench.judge(prompt, answers["r0", 0])
    assert bench.engine.stats().draft_tokens > 0
