"""Prompts whose media are one medium run in batches: answers are mlx-vlm's, alone, in company, from caches or not."""

from pathlib import Path

import numpy as np
import pytest

from pippin.engines.language.vision.joint import JointTokens, find_tokens
from pippin.engines.language.vision.media import PromptMedia, WholePrompt
from pippin.engines.language.vision.model import VisionModel
from tests.engines.language.vision.any_family import shrink, write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.test_any_family import JOINT
from tests.engines.language.vision.tiny_vision_models import picture
from tests.engines.language.vision.vision_bench import VisionBench

WIDE, TALL = picture(60, 28, 1), picture(30, 40, 2)
QUESTION = "What is in the picture, and where?"
ONE_PICTURE = {"deepseekocr", "inkling", "llava_bunny", "multi_modality", "step3p7"}
"""Families that take one picture in a prompt, or mlx-vlm itself fails with several."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name == "internvl" else pytest.mark.long) for name in sorted(JOINT)
    ],
)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionBench:
    with pytest.MonkeyPatch.context() as patch:
        shrink(FAMILIES[request.param], patch)
        folder = tmp_path_factory.mktemp("models") / request.param
        made = FAMILIES[request.param]
        return VisionBench(write(request.param, made, folder), trust_remote_code=made.trusted)


def test_sequences_answer_together_as_mlx_vlm_does_alone(bench: VisionBench) -> None:
    assert isinstance(bench.model, VisionModel)
    words = "No picture here, only a text of some length."
    together, _ = bench.run(
        bench.job("wide", WIDE, QUESTION, tokens=20),
        bench.job("text", words, tokens=9),
        bench.job("tall", TALL, "Why?", tokens=14),
        bench.job("other", TALL, QUESTION, tokens=17),
        engine=bench.new_engine(),
    )
    assert together == {
        "wide": bench.judged(QUESTION, [WIDE], 20),
        "text": bench.judged(words, [], 9),
        "tall": bench.judged("Why?", [TALL], 14),
        "other": bench.judged(QUESTION, [TALL], 17),
    }


def test_several_pictures_are_answered_as_by_mlx_vlm(bench: VisionBench) -> None:
    if bench.folder.name in ONE_PICTURE:
        pytest.skip("mlx-vlm fails with several pictures")
    for shown in ([WIDE, TALL], [TALL, WIDE]):
        assert bench.alone(bench.job("a", *shown, QUESTION)) == bench.judged(QUESTION, shown)


def test_caches_change_no_answer(bench: VisionBench) -> None:
    engine = bench.new_engine()
    assert engine.vision is not None
    first, _ = bench.run(bench.job("a", WIDE, QUESTION), engine=engine)
    again, ends = bench.run(bench.job("a", WIDE, QUESTION), engine=engine)
    assert again == first
    assert ends["a"].usage.cached_tokens >= 24
    other = bench.job("b", WIDE, "Is it red?")
    assert bench.run(other, engine=engine)[0]["b"] == bench.judged("Is it red?", [WIDE])
    assert engine.vision.encoded == 1
    another = bench.job("c", TALL, QUESTION)
    assert bench.run(another, engine=engine)[0]["c"] == bench.judged(QUESTION, [TALL])


def test_several_answers_are_given_to_one_prompt(bench: VisionBench) -> None:
    found, ends = bench.run(bench.job("a", WIDE, QUESTION, n=2), engine=bench.new_engine())
    assert found["a"] == bench.judged(QUESTION, [WIDE])
    assert (ends["a"].choice, ends["a"].usage.completion_tokens) == (1, 12)


def test_media_are_known_by_their_content_and_order(bench: VisionBench) -> None:
    def identities(*shown: bytes) -> tuple[int, ...]:
        job = bench.job("a", *shown, QUESTION)
        assert isinstance(job.media, PromptMedia)
        return job.media.identify(job.prompt)

    assert identities(WIDE) == identities(WIDE)
    assert len({identities(WIDE), identities(TALL)}) == 2
    if bench.folder.name not in ONE_PICTURE:
        assert len({identities(WIDE), identities(WIDE, TALL), identities(TALL, WIDE)}) == 3


def test_tokens_below_zero_and_tokens_of_several_features_are_placed() -> None:
    prompt = WholePrompt(np.array([[5, -1, 6]], np.int32), {"attention_mask": np.ones((1, 3))})
    tokens, media = JointTokens(frozenset({-1}), features=3).place(prompt, "image", b"12345678")
    assert tokens == [5, 0, 0, 0, 6]
    (placed,) = media.placed
    assert placed.positions == (1, 2, 3)
    assert (placed.medium.tokens, placed.medium.arrays) == ((5, -1, 6), {})


def test_a_model_whose_prompts_see_all_their_tokens_is_not_joined(tmp_path: Path) -> None:
    """PaliGemma's text attends to the text after it, so a prompt cannot be cut."""
    bench = VisionBench(write("paligemma", FAMILIES["paligemma"], tmp_path / "paligemma"))
    model = VisionModel(bench.model.inner)
    jobs = [bench.job("a", shown, QUESTION) for shown in (WIDE, TALL)]
    samples = [job.media for job in jobs if isinstance(job.media, WholePrompt)]
    assert len(samples) == 2
    assert find_tokens(model, samples) is None
