"""What a model computes: the same in every way, and beside the library; tool calls and questions are counted."""

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from pippin.core.completion import CompletedChoice, CompletedPart, Completion
from pippin.core.events import Finished, Token
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.engines.language.kv_cache.layout import CacheLayout
from pippin.engines.verify import numbers, questions, tools
from pippin.engines.verify.asking import Served
from pippin.engines.verify.numbers import difference
from tests.engines.verify.folders import edit, report_on, write_sound

Arrays = dict[str, mx.array]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound(tmp_path_factory.mktemp("computed") / "model")


def test_a_tiny_model_computes_the_same_in_every_way(sound: Path, tmp_path: Path) -> None:
    other = write_sound(tmp_path / "other")
    edit(other, "config.json", rope_theta=100.0)
    [section] = report_on(sound, "numbers", architecture="llama", against=other).sections
    # A random model is as good as chance, and that is told.
    assert [each.code for each in section.findings] == ["perplexity"]
    figures = section.figures
    ways = [value for name, value in figures.items() if name.startswith("largest difference")]
    assert len(ways) == 3
    assert max(ways) < 1e-3
    assert figures["mean difference from mlx-lm in float32"] < 1e-3
    assert figures["divergence from the other"] > 1e-4
    [section] = report_on(sound, "numbers", architecture="llama", against=sound).sections
    assert section.figures["divergence from the other"] == pytest.approx(0, abs=1e-6)


def test_what_an_adapter_changes_is_no_fault(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = ModelInfo(id="tiny", kind="language", path=str(sound), architecture="llama")
    served = Served.open(WorkerSpec(info=info))
    monkeypatch.setattr(numbers, "_answers", lambda _, prompts, *named: [()] * len(prompts))
    monkeypatch.setattr(numbers, "_beside_library", lambda *_: 1.0)
    monkeypatch.setattr(numbers, "_perplexity", lambda *_: ())
    for adapted, severity in ((True, "note"), (False, "fault")):
        [found] = numbers.check(served, sound, None, adapted=adapted)[0]
        assert (found.code, found.severity) == ("library-differs", severity)


def test_a_refused_request_leaves_the_others_their_answers(sound: Path) -> None:
    info = ModelInfo(id="tiny", kind="language", path=str(sound), architecture="llama")
    served = Served.open(WorkerSpec(info=info))
    tokens = (5, 10**6, 5)
    requests = [GenerationRequest(model="m", prompt=(token,), max_tokens=3) for token in tokens] * 4
    told: list[tuple[int, int]] = []
    answers = served.ask_all(requests, lambda done, total: told.append((done, total)))
    assert [each is None for each in answers] == [False, True, False] * 4
    assert told == [(done, 12) for done in range(5, 13)]


def test_the_branches_of_questions_score_what_whole_prompts_do(sound: Path) -> None:
    info = ModelInfo(id="tiny", kind="language", path=str(sound), architecture="llama")
    served = Served.open(WorkerSpec(info=info))
    found = questions.measure(served)
    for number in (0, 1, 149, 299):
        question = questions.questions()[number]
        opening, right = f"Question: {question.asked}\nAnswer:", question.choices[0]
        ids = served.preparer.tokenizer.encode(f"{opening} {right}", add_special_tokens=True)
        head = served.preparer.tokenizer.encode(opening, add_special_tokens=True)
        assert ids[: len(head)] == head
        request = GenerationRequest(model="m", prompt=tuple(ids), echo=True, prompt_logprobs=0, max_tokens=0)
        [whole] = served.ask([request])
        assert whole.echo is not None
        expected = sum(token.logprob or 0.0 for token in whole.echo.tokens[len(head) :])
        assert found.scores[number] * (len(right.encode()) + 1) == pytest.approx(expected, abs=1e-3)


def test_questions_are_left_out_where_the_caches_cannot_branch(
    sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = property(lambda layout: False, lambda layout, forks: None)
    monkeypatch.setattr(CacheLayout, "forks", never, raising=False)
    [section] = report_on(sound, "questions", architecture="llama").sections
    assert section.left_out == "the caches of the model can't branch"
    assert not section.findings


def answer(*tokens: tuple[int, float]) -> tuple[Token, ...]:
    return tuple(Token(id=id_, raw=b"", logprob=logprob) for id_, logprob in tokens)


def test_answers_differ_where_a_token_is_another_and_no_tie() -> None:
    one = answer((1, -0.5), (2, -0.1))
    assert difference(one, one) == 0
    assert difference(one, answer((1, -0.9), (2, -0.1))) == pytest.approx(0.4)
    assert difference(one, answer((1, -0.5), (3, -0.12))) == 0
    assert difference(one, answer((1, -0.5), (3, -2.0))) == math.inf
    assert difference(one, one[:1]) == math.inf


def said(*parts: CompletedPart, reason: str = "stop") -> Completion:
    finished = Finished(0, reason)  # type: ignore[arg-type]
    return Completion(choices=[CompletedChoice(parts=list(parts), finished=finished)])


def test_a_call_is_read_and_held_to_its_schema() -> None:
    weather = tools.prompts()[0]
    call = CompletedPart(kind="tool_call", name="get_weather", text='{"city": "Oslo", "days": 1}')
    assert tools.look(weather, said(call), ()) == ["tried", "parsed", "valid", "right", "finished"]
    for arguments in (
        '{"days": 1}',
        '{"city": 3}',
        '{"city": "Oslo", "unit": "kelvin"}',
        '{"city": "Oslo", "x": 1}',
    ):
        call.text = arguments
        assert "parsed" in tools.look(weather, said(call), ())
        assert "valid" not in tools.look(weather, said(call), ())
    call.text = '{"city": '
    assert "parsed" not in tools.look(weather, said(call), ())


def test_a_call_that_became_text_and_a_thought_without_end_are_counted() -> None:
    weather = tools.prompts()[0]
    broken = said(CompletedPart(kind="text", text="<tool_call>{broken"), reason="length")
    assert tools.look(weather, broken, ("<tool_call>",)) == ["tried"]
    thought = CompletedPart(kind="reasoning", text="Hm")
    assert tools.look(weather, said(thought, reason="length"), ("<tool_call>",)) == ["open"]
    assert tools.look(weather, said(thought), ()) == ["finished", "open"]
    assert tools.look(weather, said(CompletedPart(kind="text", text="<think>Hm")), ()) == ["finished", "open"]
    assert tools.look(weather, said(CompletedPart(kind="text", text="<think></think>A")), ()) == ["finished"]


def counts(**looks: int) -> tools.Counts:
    return tools.Counts(40, 37, 256, Counter(looks))


def test_calls_are_judged_by_themselves_and_by_the_other_model() -> None:
    good = counts(tried=37, parsed=37, valid=36, right=36, finished=40)
    assert list(tools.check(good, None)) == []
    poor = counts(tried=30, parsed=10, valid=9, right=9, finished=20, open=5)
    found = list(tools.check(poor, good))
    assert {each.code for each in found} == {"calls", "unfinished", "thoughts-open", "calls-lost"}
    assert [each.code for each in tools.check(counts(finished=40), None)] == ["no-calls"]


def test_bundled_prompts_and_questions_are_sound() -> None:
    assert len(tools.prompts()) == 40
    # `on` alone is no name in YAML, but true.
    offered = [each.parameters or {} for prompt in tools.prompts() for each in prompt.tools]
    assert all(json.loads(json.dumps(schema)) == schema for schema in offered)
    assert all(set(schema.get("required", ())) <= schema["properties"].keys() for schema in offered)
    assert all(prompt.calls in {None, *(tool.name for tool in prompt.tools)} for prompt in tools.prompts())
    assert len(questions.questions()) == len({each.asked for each in questions.questions()}) == 300
    assert all(len(set(each.choices)) == questions.CHOICES for each in questions.questions())


def test_answers_that_a_quantisation_lost_are_counted() -> None:
    before = questions.Answers((True,) * 200 + (False,) * 100, (-1.0,) * 300)
    after = questions.Answers((False,) * 20 + (True,) * 185 + (False,) * 95, (-1.0,) * 300)
    [found] = questions.check(after, before)
    assert (found.severity, found.text[:40]) == ("warning", "20 questions are lost that the other mod")
    assert "5 are won" in found.text


@pytest.mark.model
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_real_model_keeps_its_quality(demo_model: Path) -> None:
    numbers, asked = report_on(demo_model, "numbers", "questions", architecture="llama").sections
    assert numbers.findings == asked.findings == ()
    assert numbers.figures["perplexity"] < 30
    assert asked.figures["right (by guessing 0.25)"] > 0.4


def rolled(arrays: Arrays) -> None:
    """The embeddings one row further."""
    for name in arrays:
        if "embed_tokens." in name:
            arrays[name] = mx.roll(arrays[name], 1, axis=0)


def swapped(arrays: Arrays) -> None:
    """Two layers in each other's place."""
    for name in list(arrays):
        if ".layers.5." in name:
            other = name.replace(".layers.5.", ".layers.20.")
            arrays[name], arrays[other] = arrays[other], arrays[name]


def exchanged(part: str, other: str) -> Callable[[Arrays], None]:
    """Two matrices of each layer in each other's place."""

    def exchange(arrays: Arrays) -> None:
        for name in [name for name in arrays if part in name]:
            twin = name.replace(part, other)
            arrays[name], arrays[twin] = arrays[twin], arrays[name]

    return exchange


def in_llamas_order(arrays: Arrays) -> None:
    """Queries and keys with the halves of their rotary pairs interleaved, as llama.cpp stores them."""
    for name, array in arrays.items():
        if "q_proj" in name or "k_proj" in name:
            heads = array.reshape(-1, 2, 32, array.shape[-1]).swapaxes(1, 2)
            arrays[name] = mx.contiguous(heads.reshape(array.shape))


def one_more(arrays: Arrays) -> None:
    """The last norm as 1 + w where w is stored."""
    arrays["model.norm.weight"] = arrays["model.norm.weight"] + 1


def scaled(part: str, factor: float, layers: int) -> Callable[[Arrays], None]:
    """A projection larger in the first layers, as where an adapter was merged into a part of them, or twice."""

    def scale(arrays: Arrays) -> None:
        for name in arrays:
            found = re.fullmatch(rf"model\.layers\.(\d+)\.{re.escape(part)}\.(weight|scales|biases)", name)
            packed = f"{name.rpartition('.')[0]}.scales" in arrays
            if found and int(found[1]) < layers and not (packed and found[2] == "weight"):
                arrays[name] = arrays[name] * factor

    return scale


@pytest.mark.model
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("change", "alone"),
    [
        (rolled, True),
        (exchanged("self_attn.k_proj", "self_attn.v_proj"), True),
        (exchanged("mlp.gate_proj", "mlp.up_proj"), True),
        (in_llamas_order, True),
        (one_more, True),
        (swapped, False),
        (scaled("self_attn.q_proj", 1.6, 15), False),
        (scaled("mlp.down_proj", 1.3, 30), False),
    ],
)
def test_numbers_tell_faults_that_no_file_does(
    demo_model: Path, tmp_path: Path, change: Callable[[Arrays], None], *, alone: bool
) -> None:
    """`alone`: without the original beside it."""
    folder = tmp_path / "model"
    shutil.copytree(demo_model, folder)
    arrays = mx.load(str(folder / "model.safetensors"))
    assert isinstance(arrays, dict)
    change(arrays)
    mx.save_safetensors(str(folder / "changed.safetensors"), arrays, {"format": "mlx"})
    (folder / "changed.safetensors").rename(folder / "model.safetensors")
    against = None if alone else demo_model
    [section] = report_on(folder, "numbers", architecture="llama", against=against).sections
    assert ("perplexity" if alone else "other-better") in {each.code for each in section.findings}
