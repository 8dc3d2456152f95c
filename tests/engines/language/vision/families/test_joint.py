"""Prompts whose media are one medium run in batches: answers are mlx-vlm's, alone, in company, from caches or not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_vlm.models.cache import make_prompt_cache

from pippin.core.events import Event, Failed, PromptEcho
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.library.autoregressive import AutoregressiveModel
from pippin.engines.language.vision.joint import find_tokens
from pippin.engines.language.vision.media import JointTokens, Modality, PromptMedia, WholePrompt
from pippin.engines.language.vision.model import VisionModel, embedded
from pippin.engines.language.vision.prompt_processing import PromptProcessor
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.test_any_family import JOINT, opened
from tests.engines.language.vision.tiny_vision_models import picture
from tests.engines.language.vision.vision_bench import VisionBench

WIDE, TALL = picture(60, 28, 1), picture(30, 40, 2)
QUESTION = "What is in the picture, and where?"
ONE_PICTURE = {
    *("deepseekocr", "deepseekocr_2", "got", "llava_bunny", "molmo", "moondream2", "moondream3"),
    *("multi_modality", "step3p7"),
}
"""Families that take one picture in a prompt, or mlx-vlm itself fails with several."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name == "internvl" else pytest.mark.long) for name in sorted(JOINT)
    ],
)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VisionBench]:
    folder = tmp_path_factory.mktemp("models")
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # until the last test: mlx-vlm's processors are opened in each
        yield opened(request.param, folder, patch)


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
    expected = bench.judged(QUESTION, [WIDE])
    assert found["a"] == expected
    assert (ends["a"].choice, ends["a"].usage.completion_tokens) == (1, len(expected))


def test_the_prompts_own_logprobs_are_mlx_vlm_s(bench: VisionBench) -> None:
    job = bench.job("a", WIDE, QUESTION, tokens=1, prompt_logprobs=0)
    [echo] = [event for event in events_of(bench, job) if isinstance(event, PromptEcho)]
    assert isinstance(job.media, PromptMedia)
    assert job.media.joint
    [placed] = job.media.placed
    bench.unused.restore()
    whole = WholePrompt(np.array([placed.medium.tokens], np.int32), placed.medium.arrays)
    logits = logits_of(bench.model.inner, whole).astype(mx.float32)
    expected = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    after = [expected[place, token].item() for place, token in enumerate(job.prompt[1:])]
    assert [token.logprob for token in echo.tokens[1:]] == pytest.approx(after, abs=2e-3)
    assert len(echo.tokens) == len(logits) > len(placed.positions) > 0


def events_of(bench: VisionBench, job: LanguageJob) -> list[Event]:
    engine, events = bench.new_engine(), list[Event]()
    engine.submit(job)
    while engine.busy:
        events += [event for _, event in engine.step()]
    return events


def logits_of(inner: nn.Module, prompt: WholePrompt) -> mx.array:
    """Of all tokens [tokens, vocabulary], as mlx-vlm computes them in one forward pass."""
    language, given = inner.language_model, embedded(inner, prompt)
    logits: mx.array = language(mx.array(prompt.ids), cache=make_prompt_cache(language), **given).logits
    return logits[0]


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
    assert placed.medium.prompt == (5, 0, 0, 0, 6)


def test_text_with_tokens_that_features_replace_is_another_medium() -> None:
    """Features are kept by the digest: those of fewer tokens must not be found for more."""
    replaced = JointTokens(frozenset({7, 8}))
    digests = {
        replaced.place(WholePrompt(np.array([ids], np.int32), {}), "image", b"12345678")[1]
        .placed[0]
        .medium.digest
        for ids in ([1, 7, 1, 2], [3, 1, 7, 2], [1, 7, 7, 2], [1, 7, 8, 2], [1, 8, 7, 2])
    }
    assert len(digests) == 4


@pytest.fixture(scope="module")
def internvl(tmp_path_factory: pytest.TempPathFactory) -> VisionBench:
    return VisionBench(
        write("internvl", FAMILIES["internvl"], tmp_path_factory.mktemp("models") / "internvl")
    )


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (lambda ids: JointTokens(frozenset(range(100))), "replace tokens that no other picture has"),
        (lambda ids: JointTokens(ids, features=2), "embeddings of"),
    ],
)
def test_a_picture_whose_features_replace_other_tokens_than_at_load_is_refused(
    internvl: VisionBench,
    monkeypatch: pytest.MonkeyPatch,
    found: Callable[[frozenset[int]], JointTokens],
    reason: str,
) -> None:
    """Its answer would not be mlx-vlm's, for the other tokens would be taken for text."""
    media = internvl.preparer.media
    assert isinstance(media, PromptProcessor)
    assert media.joint is not None
    monkeypatch.setattr(media, "joint", found(media.joint.ids))
    [failed] = events_of(internvl, internvl.job("a", WIDE, "What?"))
    assert isinstance(failed, Failed)
    assert (failed.error.kind, failed.error.param) == ("invalid_request", "messages")
    assert reason in failed.error.message


def test_a_model_whose_processor_takes_one_size_of_pictures_is_loaded_and_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(
        self: PromptProcessor, modality: Modality, number: int, text: str, count: int = 1
    ) -> WholePrompt:
        if number == 2:
            raise ValueError("not of this size")
        return original(self, modality, number, text, count)

    original = PromptProcessor.sample
    monkeypatch.setattr(PromptProcessor, "sample", sample)
    bench = VisionBench(write("internvl", FAMILIES["internvl"], tmp_path / "internvl"))
    assert isinstance(bench.model, AutoregressiveModel)
    assert bench.alone(bench.job("a", WIDE, "What?")) == bench.judged("What?", [WIDE])


def test_a_model_whose_prompts_see_all_their_tokens_is_not_joined(tmp_path: Path) -> None:
    """PaliGemma's text attends to the text after it, so a prompt cannot be cut."""
    bench = VisionBench(write("paligemma", FAMILIES["paligemma"], tmp_path / "paligemma"))
    model = VisionModel(bench.model.inner)
    jobs = [bench.job("a", shown, QUESTION) for shown in (WIDE, TALL)]
    samples = [job.media for job in jobs if isinstance(job.media, WholePrompt)]
    assert len(samples) == 2
    assert find_tokens(model, bench.model.logprobs, samples) is None
