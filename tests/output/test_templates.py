"""Model families' own chat templates: which formats they are told by, and the calls that they write read back."""

import json
from typing import Any

import pytest

from pippin.core.conversation import Part, Reasoning, Text, ToolCall
from pippin.output.formats import (
    detect,
    reasoning_format,
    reasoning_formats,
    tool_format,
    tool_formats,
)
from tests.output.families import BY_NAME, FAMILIES, FOLDER, LLAMA_CPP, VLLM, Family, renderer_of
from tests.output.grammar_walks import Walks, special_tokens
from tests.output.reading import fold, read, reader_of
from tests.output.wire import CLOCK, TOOLS, WEATHER

RICH: dict[str, Any] = {
    "city": 'Paris "<x>" {y}\nZürich 東京, it\'s \\ [ok] 🙂\t</b>',
    "days": 3,
    "metric": True,
    "note": None,
    "tags": ["a b", "c"],
    "place": {"zip": "7"},
}
PLAIN = {**RICH, "city": "Zürich, 東京 <x> {y}"}
SIMPLE = {"city": "Zürich, 東京"}
CALLING = [family for family in (*FAMILIES, *BY_NAME) if family.tool and family.writes != "nothing"]
by_file = pytest.mark.parametrize("family", CALLING, ids=lambda family: f"{family.file}-{family.tool}")


def calls_of(family: Family) -> list[ToolCall]:
    """The calls whose rendering its template gets right, in one turn."""
    given = {"plain": PLAIN, "simple": SIMPLE}.get(family.writes, RICH)
    if not family.null:
        given = {key: value for key, value in given.items() if value is not None}
    calls = [
        ToolCall(id="abcdefgh0", name=WEATHER.name, arguments=json.dumps(given, ensure_ascii=False)),
        ToolCall(id="abcdefgh1", name=CLOCK.name, arguments="{}"),
        ToolCall(id="abcdefgh2", name=WEATHER.name, arguments=json.dumps(SIMPLE, ensure_ascii=False)),
    ]
    return calls if family.writes == "several" else calls[:1]


def parts_of(family: Family, wire: str, pieces: list[str]) -> list[tuple[Any, ...]]:
    """As a reader has them; the prompt has opened the reasoning where the turn only ends it."""
    opened = False
    if family.reasoning:
        found = reasoning_format(family.reasoning)
        opened = found.end in wire and not wire.lstrip().startswith((found.start, *found.starts))
    reader = reader_of(family.tool, family.reasoning, tools=TOOLS, thinking=opened)
    parts = fold(read(reader, pieces))
    return [(part[0], part[1], json.loads(part[2])) if len(part) == 3 else part for part in parts]


def expected(parts: list[Part]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for part in parts:
        match part:
            case ToolCall():
                found.append(("tool_call", part.name, json.loads(part.arguments)))
            case Text(text):
                found.append(("text", text))
            case Reasoning(text):
                found.append(("reasoning", text))
    return found


def test_every_fetched_template_is_accounted_for() -> None:
    there = {(path.parent.name, path.stem) for path in FOLDER.glob("*/*.jinja")}
    listed = [(family.package, family.file) for family in FAMILIES]
    assert {found for found in there if found[0] in (LLAMA_CPP, VLLM)} == set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.file)
def test_a_template_tells_its_formats(family: Family) -> None:
    found = detect(family.source)
    assert (found.tools and found.tools.name, found.reasoning and found.reasoning.name) == (
        family.tool,
        family.reasoning,
    )


def test_the_priorities_of_formats_leave_no_doubt() -> None:
    for family in FAMILIES:
        for formats, find in (
            (sorted(tool_formats()), tool_format),
            (sorted(reasoning_formats()), reasoning_format),
        ):
            matching = {
                find(name).name: find(name).priority for name in formats if find(name).matches(family.source)
            }
            assert len(set(matching.values())) == len(matching), (family.file, matching)


@by_file
def test_calls_that_a_template_writes_are_read_back_in_any_pieces(family: Family) -> None:
    calls: list[Part] = [*calls_of(family)]
    wire = renderer_of(family).answer(calls, TOOLS)
    for size in (1, 5, 34):
        pieces = [wire[at : at + size] for at in range(0, len(wire), size)]
        assert parts_of(family, wire, pieces) == expected(calls), wire


@pytest.mark.long
@by_file
def test_calls_that_a_template_writes_are_read_back_cut_at_every_place(family: Family) -> None:
    calls: list[Part] = [*calls_of(family)]
    wire = renderer_of(family).answer(calls, TOOLS)
    for cut in range(len(wire)):
        assert parts_of(family, wire, [wire[:cut], wire[cut:]]) == expected(calls), (cut, wire)


@by_file
def test_text_and_reasoning_beside_calls_are_kept(family: Family) -> None:
    if not (family.text or (family.reasoning and family.thoughts)):
        pytest.skip("this template writes nothing beside calls")
    beside: list[Part] = [Reasoning("Hm, a < b.")] if family.reasoning and family.thoughts else []
    beside += [Text("Let me see.")] if family.text else []
    parts = [*beside, *calls_of(family)]
    wire = renderer_of(family).answer(parts, TOOLS)
    assert parts_of(family, wire, list(wire)) == expected(parts), wire


@by_file
def test_a_grammar_admits_what_a_template_writes(family: Family) -> None:
    if not family.admitted or family.tool == "auto":
        pytest.skip("a grammar writes the same calls in another way")
    assert family.tool
    calls: list[Part] = [*calls_of(family)]
    wire = renderer_of(family).answer(calls, TOOLS).strip("\n")
    walks = Walks(special_tokens(tool_format(family.tool).markers))
    source = tool_format(family.tool).grammar(TOOLS, required=True, parallel=True, special=walks.special)
    assert walks.admits(source, wire), wire
