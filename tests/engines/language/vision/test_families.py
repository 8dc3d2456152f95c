"""Each family's answers are those of mlx-vlm's own generate: alone, in company, from caches or without."""

import pytest

from tests.engines.language.vision.tiny_vision_models import FAMILIES, HEARING, picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench

WIDE, TALL, SMALL = picture(60, 28, 1), picture(20, 52, 2), picture(17, 19, 3)
QUESTION = "What is in the picture, and where?"


# One of each way to place pictures, to attend to them and to keep what was computed; Gemma 4: `test_mutual.py`.
QUICK = ("gemma3", "idefics3", "llava", "qwen2_vl", "qwen3_5", "qwen3_vl")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in (*FAMILIES, *HEARING)
    ],
)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionBench:
    return VisionBench(tiny_vision_model(request.param, tmp_path_factory.mktemp("models") / request.param))


def test_a_picture_is_answered_as_mlx_vlm_does(bench: VisionBench) -> None:
    for shown in (WIDE, TALL, SMALL):
        assert bench.alone(bench.job("a", shown, QUESTION)) == bench.judged(QUESTION, [shown])


def test_answers_depend_on_the_picture(bench: VisionBench) -> None:
    assert len({tuple(bench.alone(bench.job("a", shown, QUESTION))) for shown in (WIDE, TALL, SMALL)}) > 1


def test_sequences_of_pictures_and_of_text_answer_together_as_alone(bench: VisionBench) -> None:
    jobs = {
        "wide": bench.job("wide", WIDE, QUESTION, tokens=20),
        "text": bench.job("text", "No picture here, only a text of some length.", tokens=9),
        "tall": bench.job("tall", TALL, "Why?", tokens=14),
        "small": bench.job("small", SMALL, QUESTION, tokens=17),
        "short": bench.job("short", "Hi", tokens=20),
    }
    together, _ = bench.run(*jobs.values(), engine=bench.new_engine())
    assert together == {name: bench.alone(job) for name, job in jobs.items()}
    assert together["text"] == bench.judged("No picture here, only a text of some length.", [], 9)
    assert together["small"] == bench.judged(QUESTION, [SMALL], 17)


def test_caches_change_no_answer(bench: VisionBench) -> None:
    engine = bench.new_engine()
    first, _ = bench.run(bench.job("a", WIDE, QUESTION), engine=engine)
    again, ends = bench.run(bench.job("a", WIDE, QUESTION), engine=engine)
    assert again == first
    assert ends["a"].usage.cached_tokens >= 24
    other = bench.job("b", WIDE, "Is it red?")
    followed, ends = bench.run(other, engine=engine)
    assert followed["b"] == bench.alone(other)
    assert engine.vision.encoded == 1
