"""Every tool-call format's grammar compiles, and what it lets through is read back as a legal call."""

import json

import jsonschema
import pytest

from pippin.core.completion import CompletedChoice, Completion
from pippin.core.conversation import Tool, ToolChoice
from pippin.engines.language.constraints.grammar import GrammarCompiler
from pippin.output.formats import tool_format, tool_formats
from pippin.output.reader import Formats, OutputReader, ToolUse
from pippin.output.tool_format import ToolFormat
from tests.engines.language.constraints.test_constraints import Walker
from tests.engines.language.text.small_tokenizer import byte_level

TOKENIZER = byte_level()
COMPILER = GrammarCompiler(TOKENIZER)
FORMATS = sorted({tool_format(name).name for name in sorted(tool_formats())})
FREE_TEXT_FIRST = {
    "harmony",
    "muse_spark",
}  # free reasoning may come first, which a random walk does not leave
TOOLS = (
    Tool(
        "look_up",
        parameters={
            "type": "object",
            "properties": {"word": {"type": "string", "maxLength": 12}, "many": {"type": "integer"}},
            "required": ["word"],
            "additionalProperties": False,
        },
    ),
    Tool("stop", parameters={"type": "object", "properties": {}, "additionalProperties": False}),
)
VALIDATORS = {tool.name: jsonschema.Draft202012Validator(tool.parameters) for tool in TOOLS}


def source(form: ToolFormat, *, required: bool = True, parallel: bool = False) -> str:
    return form.grammar(TOOLS, required=required, parallel=parallel, special=COMPILER.special_id)


def read(form: ToolFormat, text: str) -> CompletedChoice:
    reader = OutputReader(0, Formats(tools=form), ToolUse(tools=TOOLS, choice=ToolChoice("required")))
    completion = Completion()
    for event in reader.feed(text) + reader.finish():
        completion.add(event)
    return completion.choices[0]


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_the_grammar_of_a_format_compiles(name, parallel, required):
    assert COMPILER.compile(None, source(tool_format(name), required=required, parallel=parallel))


@pytest.mark.parametrize("name", sorted(set(FORMATS) - FREE_TEXT_FIRST))
def test_what_a_required_grammar_lets_through_is_a_legal_call(name):
    form = tool_format(name)
    grammar, walker = COMPILER.compile(None, source(form)), Walker(TOKENIZER)
    for seed in range(6):
        text = walker.walk(grammar, seed)
        calls = [part for part in read(form, text).parts if part.kind == "tool_call"]
        assert len(calls) == 1, text
        (tool,) = [tool for tool in TOOLS if tool.name == calls[0].name]
        VALIDATORS[tool.name].validate(json.loads(calls[0].text))
