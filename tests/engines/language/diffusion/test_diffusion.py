"""Diffusion language models: answers are those of mlx-vlm's own generate, and requests end as with any other model."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pippin.core.conversation import Tool, ToolChoice
from pippin.core.errors import ServerError
from pippin.core.events import Failed, Finished, PartDelta, PartStarted, Progress, PromptEcho
from pippin.core.requests import AskedDiffusion, JsonObject, Thinking
from pippin.engines.language.prompt.loops import find_family, refuse_diffusion
from pippin.engines.language.vision.checkpoint import read_config
from tests.engines.driving import run
from tests.engines.language.diffusion.diffusion_bench import DiffusionBench, ended, text_of
from tests.engines.language.diffusion.tiny_diffusion import FAMILIES, Judge, tiny_diffusion_model
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.tiny_vision_models import picture


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("diffusion")
    return {name: tiny_diffusion_model(name, root / name) for name in FAMILIES}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bench(family: str, folders: dict[str, Path]) -> Iterator[DiffusionBench]:
    made = DiffusionBench(folders[family])
    yield made
    made.engine.close()


@pytest.fixture(scope="module")
def quick(folders: dict[str, Path]) -> Iterator[DiffusionBench]:
    """Of the family that computes least, for what is alike in all of them."""
    made = DiffusionBench(folders["nemotron_labs_diffusion"])
    yield made
    made.engine.close()


@pytest.fixture(scope="module")
def judge(family: str, folders: dict[str, Path]) -> Judge:
    return Judge(folders[family])


WORDS = "What is in a name?"
SEEDED = {"seed": 5}


def test_a_greedy_answer_is_mlx_vlms(bench: DiffusionBench, judge: Judge) -> None:
    wanted = judge.answer(WORDS, tokens=32, seed=5)
    text, end = bench.answer(WORDS, tokens=32, sampling=SEEDED)
    assert text == bench.shown(wanted)
    assert end.usage.completion_tokens == len(wanted)


def test_a_drawn_answer_is_mlx_vlms_with_the_same_seed(
    quick: DiffusionBench, folders: dict[str, Path]
) -> None:
    wanted = Judge(folders["nemotron_labs_diffusion"]).answer(WORDS, temperature=0.9, seed=11)
    drawn = {"temperature": 0.9, "seed": 11}
    text, _ = quick.answer(WORDS, sampling=drawn)
    assert text == quick.shown(wanted)
    assert quick.answer(WORDS, sampling=drawn | {"seed": 12})[0] != text


def test_a_short_answer_is_the_beginning_of_a_long_one(folders: dict[str, Path]) -> None:
    """mlx-vlm's own loop leaves it masked: it takes three steps for three tokens."""
    bench = DiffusionBench(folders["llada2_moe"])
    long, _ = bench.answer(WORDS)  # 32 tokens
    short, end = bench.answer(WORDS, tokens=3)
    assert short
    assert long.startswith(short.rstrip("\ufffd"))
    assert (end.reason, end.usage.completion_tokens) == ("length", 3)
    bench.engine.close()


def test_settings_of_the_loop_are_mlx_vlms(bench: DiffusionBench, judge: Judge, family: str) -> None:
    settings: dict[str, Any] = {"max_denoising_steps": 5, "block_length": 16, "threshold": 0.05}
    if family == "diffusion_gemma":
        settings |= {"diffusion_min_canvas_length": 8}
    wanted = judge.answer(WORDS, seed=5, **settings)
    text, _ = bench.answer(WORDS, sampling=SEEDED, diffusion=AskedDiffusion(**settings))
    assert text == bench.shown(wanted)


def test_an_answer_ends_at_a_stop_text_and_at_an_end_token(quick: DiffusionBench) -> None:
    text, _ = quick.answer(WORDS, sampling=SEEDED)
    place = next(i for i in range(2, len(text)) if text[i] != "\ufffd" and text.find(text[i]) == i)
    cut, end = quick.answer(WORDS, sampling=SEEDED, stop=(text[place],))
    assert (cut, end.reason, end.stop_sequence) == (text[:place], "stop", text[place])
    (token,) = quick.preparer.tokenizer.encode(text[place])
    cut, end = quick.answer(WORDS, sampling=SEEDED, stop_token_ids=(token,))
    assert (cut, end.reason) == (text[:place], "stop")
    assert end.usage.completion_tokens <= 32


def test_choices_are_written_one_after_the_other(quick: DiffusionBench) -> None:
    drawn = {"temperature": 0.9, "seed": 11}
    events = run(quick.engine, quick.job(WORDS, n=2, sampling=drawn))["a"]
    assert [end.choice for end in ended(events)] == [0, 1]
    assert text_of(events, 0) == quick.answer(WORDS, sampling=drawn)[0]
    assert text_of(events, 1) != text_of(events, 0)


def test_a_block_comes_as_soon_as_it_is_written(quick: DiffusionBench) -> None:
    events = run(quick.engine, quick.job(WORDS, tokens=70))["a"]
    assert isinstance(events[0], Progress)
    assert sum(isinstance(event, PartDelta) for event in events) >= 3


def test_an_echoed_prompt_comes_before_the_answer(quick: DiffusionBench) -> None:
    events = run(quick.engine, quick.job(WORDS, echo=True, tokens=2))["a"]
    assert [type(event) for event in events[:3]] == [Progress, PromptEcho, PartStarted]
    assert isinstance(events[1], PromptEcho)
    assert WORDS in events[1].text


def test_a_cancelled_request_leaves_the_loop_before_its_next_pass(quick: DiffusionBench) -> None:
    quick.engine.submit(quick.job(WORDS, id="long", tokens=3000))
    while not quick.engine.step():
        pass
    quick.engine.cancel("long")
    assert not quick.engine.busy
    started = time.monotonic()
    text, _ = quick.answer(WORDS, sampling=SEEDED)
    assert text
    assert time.monotonic() - started < 5


def test_others_wait_their_turn_and_the_urgent_go_first(quick: DiffusionBench) -> None:
    quick.engine.submit(quick.job(WORDS, id="a", tokens=64))
    quick.engine.step()
    for name, rank in (("b", 0), ("c", 9)):
        quick.engine.submit(quick.job(WORDS, id=name, tokens=2, priority=rank))
    stats = quick.engine.stats()
    assert (stats.running, stats.waiting) == (1, 2)
    assert [each.phase for each in stats.requests][1:] == ["queued", "queued"]
    order = []
    while quick.engine.busy:
        order += [name for name, event in quick.engine.step() if isinstance(event, Finished)]
    assert order == ["a", "c", "b"]


def test_a_full_queue_a_timeout_and_a_long_wait_are_refused(folders: dict[str, Path]) -> None:
    bench = DiffusionBench(folders["nemotron_labs_diffusion"], queue_size=1, queue_timeout=0.2)
    bench.engine.submit(bench.job(WORDS, id="a", tokens=640, timeout=0.5))
    bench.engine.step()
    bench.engine.submit(bench.job(WORDS, id="b", tokens=8))
    with pytest.raises(ServerError, match="as many as the queue holds"):
        bench.engine.submit(bench.job(WORDS, id="c", tokens=8))
    failed = {}
    while bench.engine.busy:
        failed |= {name: event.error for name, event in bench.engine.step() if isinstance(event, Failed)}
    assert {name: error.kind for name, error in failed.items()} == {"b": "overloaded", "a": "timeout"}
    bench.engine.close()


def test_a_prompt_that_memory_does_not_hold_is_refused_and_an_answer_is_cut(folders: dict[str, Path]) -> None:
    bench = DiffusionBench(folders["nemotron_labs_diffusion"])
    weights, token = bench.engine.stats().weight_bytes, 1024
    bench.engine.reconfigure({"memory_bytes": weights + 2 * token * 100})
    _, end = bench.answer(WORDS, tokens=4000)
    assert end.reason == "length"
    assert end.usage.total < 100
    with pytest.raises(ServerError, match="does not fit in the"):
        bench.engine.submit(bench.job("x" * 200))
    bench.engine.close()


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("response_format", {"output_format": JsonObject()}),
    ("tool_choice", {"tools": (Tool("f"),), "tool_choice": ToolChoice(mode="required")}),
    ("tools", {"tools": (Tool("f", strict=True),)}),
    ("logprobs", {"logprobs": 0}),
    ("prompt_logprobs", {"prompt_logprobs": 0}),
    ("min_tokens", {"min_tokens": 2}),
    ("thinking_budget", {"thinking": Thinking(budget=3)}),
    ("adapter_path", {"adapter": "mine"}),
    ("logit_bias", {"sampling": {"logit_bias": {5: 1.0}}}),
    ("repetition_penalty", {"sampling": {"repetition_penalty": 1.2}}),
    ("min_p", {"sampling": {"min_p": 0.2}}),
    ("num_to_transfer", {"diffusion": AskedDiffusion(num_to_transfer=2)}),
    ("threshold", {"diffusion": AskedDiffusion(threshold=0.5, diffusion_sampler="entropy-bound")}),
]


@pytest.mark.parametrize(("field", "asked"), REFUSED, ids=[field for field, _ in REFUSED])
def test_what_the_loop_cannot_honour_is_refused_by_name(
    bench: DiffusionBench, family: str, field: str, asked: dict[str, Any]
) -> None:
    if field == "threshold" and family != "diffusion_gemma":
        field = "diffusion_sampler"
    with pytest.raises(ServerError, match=field) as caught:
        bench.engine.submit(bench.job(WORDS, **asked))
    assert caught.value.report.param == field


def test_nucleus_is_refused_where_the_loop_has_none(bench: DiffusionBench, family: str) -> None:
    if family == "diffusion_gemma":
        with pytest.raises(ServerError, match="top_k"):
            bench.engine.submit(bench.job(WORDS, sampling={"top_k": 3}))
    else:
        assert bench.answer(WORDS, sampling={"temperature": 2.0, "top_k": 1})[0]


def test_defaults_that_the_loop_does_not_follow_are_told_at_the_load(
    folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    bench = DiffusionBench(folders["nemotron_labs_diffusion"], min_p=0.1)
    assert "the default min_p changes nothing" in caplog.text
    assert bench.answer(WORDS, sampling={"min_p": 0.1})[0]
    bench.engine.close()


@pytest.mark.parametrize("option", [{"kv_bits": 4}, {"prompt_lookup": True}, {"thinking_budget": 9}])
def test_options_that_it_does_not_have_are_refused_at_the_load(
    folders: dict[str, Path], option: dict[str, Any]
) -> None:
    with pytest.raises(ServerError, match=next(iter(option))) as caught:
        DiffusionBench(folders["llada2_moe"], **option)
    assert caught.value.report.kind == "load_failed"


def test_pictures_are_answered_as_by_mlx_vlm(folders: dict[str, Path]) -> None:
    bench, judge = DiffusionBench(folders["diffusion_gemma"]), Judge(folders["diffusion_gemma"])
    assert bench.preparer.info.capabilities.images
    shown = (picture(60, 28, 1), picture(30, 40, 2))
    answers = [bench.answer("What?", each, sampling=SEEDED)[0] for each in shown]
    wanted = [judge.answer("What?", each, seed=5) for each in shown]
    assert answers == [bench.shown(each) for each in wanted]
    assert answers[0] != answers[1]
    bench.engine.close()


def test_a_model_that_writes_token_by_token_unless_told_otherwise_is_none(tmp_path: Path) -> None:
    """Nemotron's checkpoints say how they write."""
    made = replace(FAMILIES["nemotron_labs_diffusion"], config={"mask_token_id": "<mask>"})
    folder = write("nemotron_labs_diffusion", made, tmp_path / "nemotron_labs_diffusion")
    assert find_family(read_config(folder)) is None


def test_other_models_refuse_the_settings_by_name() -> None:
    with pytest.raises(ServerError, match="'block_length' is for diffusion language models"):
        refuse_diffusion(AskedDiffusion(block_length=3))
    refuse_diffusion(AskedDiffusion())
