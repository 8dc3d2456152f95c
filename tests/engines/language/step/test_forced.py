"""What a grammar forces is taken in one pass, and changes nothing that a client sees."""

import gc
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.events import Finished, PartDelta
from pippin.core.requests import Choice, Grammar, JsonSchema, JsonSpacing, Regex, Sampling
from pippin.engines.language.constraints.grammar import GrammarCompiler
from pippin.engines.language.loading import drafting
from pippin.engines.language.step.sequences import Sequence
from pippin.engines.language.step.speculation import proposers
from tests.engines.language.bench import PLAN, Bench, Eager, propose_nothing, watch
from tests.engines.tiny_models import tiny_model

SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["an ordinary customer", "an ordinary supplier"]},
        "confirmed_by_hand": {"type": "boolean"},
    },
    "required": ["first_name", "kind", "confirmed_by_hand"],
    "additionalProperties": False,
}
WANTED: dict[str, Any] = {
    "schema": JsonSchema(SCHEMA),
    "pattern": Regex("order number [0-9]{3} was sent to [a-c]{2} street"),
    "choice": Choice(("it is a dog that barks", "it is a cat that does not")),
    "lark": Grammar("lark", 'start: "the answer is " /[a-z]{2}/ " and nothing else at all"'),
}
MANNERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"sampling": Sampling(temperature=1.3, top_k=20, seed=5)},
    "penalised": {
        "sampling": Sampling(temperature=0.9, repetition_penalty=1.2, frequency_penalty=0.3, seed=6)
    },
    "several choices": {"n": 3, "sampling": Sampling(temperature=1.0, seed=7)},
}
SCORED = {"greedy": {"logprobs": 2}, "seeded": {"logprobs": 0, "sampling": Sampling(temperature=1.0, seed=5)}}
HYBRID = "qwen3_next"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: tiny_model(name, root / name) for name in ("llama", "gemma3_text", HYBRID)}


Row = tuple[str, int]


def answers(
    bench: Bench, manners: dict[str, dict[str, Any]], spacing: JsonSpacing = "any"
) -> tuple[dict[Row, list[int]], dict[Row, list[Any]], int]:
    """All formats in all manners at once, beside a row of free text: tokens and events by row, and how many steps they
    took."""
    engine, compiler = bench.engine, GrammarCompiler(bench.tokenizer)
    tokens = watch(engine)
    events: dict[Row, list[Any]] = {}
    for place, (manner, name) in enumerate(product(manners, WANTED)):
        grammar = compiler.compile(WANTED[name], spacing=spacing)
        job = bench.job(
            f"{manner} {name}", (1, 5, 9 + place), 60, output_format=WANTED[name], **manners[manner]
        )
        engine.submit(replace(job, grammar=grammar))
    engine.submit(bench.job("free", (3, 4, 5), 40))
    while engine.busy:
        for name, event in engine.step():
            events.setdefault((name, getattr(event, "choice", 0)), []).append(event)
    return tokens, events, engine.stats().steps


@pytest.mark.even
@pytest.mark.parametrize(
    ("architecture", "overlaps", "manners"),
    [
        *(("llama", True, manners) for manners in (MANNERS, SCORED)),
        *(("llama", False, manners) for manners in (MANNERS, SCORED)),
        ("gemma3_text", False, MANNERS),
        (HYBRID, True, MANNERS),
    ],
)
def test_answers_are_those_of_plain_steps(
    folders: dict[str, Path],
    architecture: str,
    overlaps: bool,
    manners: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    plan = msgspec.structs.replace(PLAN, overlaps=overlaps)
    folder, options = folders[architecture], ModelOptions(cache_block_tokens=8)
    plain = Bench(folder, options, plan)
    propose_nothing(plain.engine)
    expected, told, plain_steps = answers(plain, manners)
    found, events, steps = answers(Bench(folder, options, plan), manners)
    assert found == expected
    assert steps < plain_steps
    for row, those in told.items():
        assert text_of(events[row]) == text_of(those)
        usage = ended(events[row]).usage
        assert replace(usage, draft_tokens=0, accepted_tokens=0) == ended(those).usage
        assert (usage.forced_tokens > 0) == (row[0] != "free")
        assert row[0] != "free" or not usage.draft_tokens


def test_what_repeats_in_a_form_is_proposed_and_nothing_in_free_text(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    bench = Bench(folders["llama"], ModelOptions())
    item = {"type": "object", "properties": {"kind": {"enum": ["bird", "fish"]}}, "required": ["kind"]}
    items = {"type": "array", "items": {**item, "additionalProperties": False}, "minItems": 8, "maxItems": 8}
    grammar = GrammarCompiler(bench.tokenizer).compile(JsonSchema(items))
    usages = {}
    for name, given in (("form", grammar), ("free", None)):
        bench.engine.submit(replace(bench.job(name, (1, 5, 9), 200), grammar=given))
        while bench.engine.busy:
            usages |= {
                name: event.usage for name, event in bench.engine.step() if isinstance(event, Finished)
            }
    assert usages["form"].accepted_tokens > 20
    assert not usages["free"].draft_tokens
    for name in range(proposers.MOST_IN_FORMS + 1):
        bench.engine.submit(replace(bench.job(str(name), (1, 5, name), 40), grammar=grammar))
    steps = [event for _ in range(100) for _, event in bench.engine.step()]
    ended = [event.usage for event in steps if isinstance(event, Finished)]
    assert len(ended) > proposers.MOST_IN_FORMS
    assert min(usage.draft_tokens for usage in ended) == 0, "while all of them run"


def test_of_forms_that_have_left_nothing_is_kept(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    bench = Bench(folders["llama"], ModelOptions())
    numbers = JsonSchema({"type": "array", "items": {"enum": ["bird", "fish"]}, "minItems": 8, "maxItems": 8})
    grammar = GrammarCompiler(bench.tokenizer).compile(numbers)

    def sequences() -> int:
        gc.collect()
        return sum(isinstance(each, Sequence) for each in gc.get_objects())

    before = sequences()
    for number in range(3):
        bench.engine.submit(replace(bench.job(str(number), (1, 5, 9), 60), grammar=grammar))
        while bench.engine.busy:
            bench.engine.step()
    assert sequences() == before


@pytest.mark.parametrize(("spacing", "sign"), [("one-line", ": "), ("compact", ":")])
def test_a_fixed_spacing_forces_more(folders: dict[str, Path], spacing: JsonSpacing, sign: str) -> None:
    bench = Bench(folders["llama"], ModelOptions())
    forced = {}
    for each in ("any", spacing):
        _, events, _ = answers(bench, {"greedy": {}}, each)
        forced[each] = ended(events["greedy schema", 0]).usage.forced_tokens
    text = text_of(events["greedy schema", 0])
    assert f'"kind"{sign}"an ordinary ' in text
    assert forced[spacing] > forced["any"]


def text_of(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, PartDelta))


def ended(events: list[Any]) -> Finished:
    [found] = [event for event in events if isinstance(event, Finished)]
    return found
