"""A tool-call format is added as a row of the table, its notation as a file of the folder, that the recipe names."""

import json
from typing import Any

import pytest

from tests.recipes.overlay import Overlay, files_of_recipe

TABLE = "src/pippin/output/tool_formats.json"
FOLDER = "src/pippin/output/tool_parsers/"
ROW = {
    "name": "throw_away",
    "notation": "NobodysCalls",
    "aliases": ["nobody"],
    "about": '`<<call>>[{"name": "f", "arguments": {...}}]<</call>>`: of no model at all.',
    "openers": ["<<call>>"],
    "closers": ["<</call>>"],
    "signs": [["<<call>>"]],
    "priority": 99,
}
NOTATION = '''"""Calls that no model writes."""

from pippin.output.tool_parsers.json_envelopes import JsonEnvelope


class NobodysCalls(JsonEnvelope, frozen=True, kw_only=True):
    pass
'''
ANSWER = 'Let me look.<<call>>[{"name": "look", "arguments": {"at": ["a", {"b": 1}]}}]<</call>>Done.'
READ = f"""
import json
from pippin.core.completion import collect
from pippin.core.conversation import Tool
from pippin.output.formats import detect, tool_format
from pippin.output.reader import Formats, OutputReader, ToolUse

ANSWER = {ANSWER!r}
TOOLS = (Tool("look", parameters={{"type": "object"}}),)

def read(pieces):
    reader = OutputReader(0, Formats(tools=tool_format("nobody")), ToolUse(tools=TOOLS))
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.finish()
    return [[part.kind, part.name, part.text] for part in collect(events).choices[0].parts]

detected = detect("{{{{ '<<call>>' }}}}").tools
print(json.dumps({{
    "detected": detected and detected.name,
    "read": [read([ANSWER[:cut], ANSWER[cut:]]) for cut in range(len(ANSWER) + 1)] + [read(ANSWER)],
    "grammar": detected.grammar(TOOLS, required=True, parallel=True, special=lambda text: None),
}}))
"""


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Overlay:
    overlay = Overlay(tmp_path_factory.mktemp("recipe"))
    overlay.insert(TABLE, "]", f", {json.dumps(ROW)}\n")
    overlay.write(FOLDER + "throw_away.py", NOTATION)
    return overlay


@pytest.fixture(scope="module")
def used(overlay: Overlay) -> dict[str, Any]:
    found: dict[str, Any] = overlay.run(READ)
    return found


def test_the_recipe_names_the_table_and_the_folder_of_the_file() -> None:
    assert files_of_recipe("a tool-call format") == {TABLE, FOLDER}


def test_the_format_is_known_by_name_and_by_template(used: dict[str, Any]) -> None:
    assert used["detected"] == "throw_away"
    assert "look" in used["grammar"]


def test_a_stream_cut_anywhere_gives_the_same_parts(used: dict[str, Any]) -> None:
    for text, call, rest in used["read"]:
        assert (text[0], text[2]) == ("text", "Let me look.")
        assert (call[:2], json.loads(call[2])) == (["tool_call", "look"], {"at": ["a", {"b": 1}]})
        assert (rest[0], rest[2]) == ("text", "Done.")
