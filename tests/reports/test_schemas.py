"""Reported: a keyword that a grammar lacks must not refuse a request that did not ask for strictness."""

from collections.abc import Iterator
from typing import Any

import pytest

from pippin.core.conversation import Tool, ToolChoice
from pippin.core.requests import JsonSchema
from tests.engines.language.prompt.test_preparer import PLAIN, chat, job_of, refusal, say
from tests.reports.asking import ask, server, streamed, tool_of

LACKING: dict[str, Any] = {
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "propertyNames": {"type": "object", "propertyNames": {"format": "email"}},
    "format": {"type": "string", "format": "uri-reference"},
    "if": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "pattern": {"type": "string", "pattern": "^(?=.*a).*$"},
    "name in a pattern": {"type": "string", "pattern": "^(?<y>[0-9]+)-\\k<y>$"},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "contains": {"type": "array", "contains": {"type": "integer"}},
    "unevaluatedProperties": {
        "type": "object", "anyOf": [{"properties": {"a": {}}}, {}], "unevaluatedProperties": False
    },
    "$ref": {"$ref": "https://example.com/schema.json"},
    "type": {"type": "any"},
    "broken pattern": {"type": "string", "pattern": "a("},
}  # fmt: skip


def schema_with(keyword: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"t": LACKING[keyword]}}


@pytest.mark.parametrize("keyword", LACKING)
def test_row_1_a_forced_call_may_be_of_a_tool_whose_schema_a_grammar_lacks(keyword: str) -> None:
    tools = (Tool("ok", None, None), Tool("f", None, schema_with(keyword)))
    for choice in (ToolChoice("required"), ToolChoice("required", ("ok",)), ToolChoice("required", ("f",))):
        request = chat(say("user", "go"), tools=tools, tool_choice=choice)
        assert job_of(PLAIN, request).grammar is not None


@pytest.mark.parametrize("keyword", LACKING)
def test_row_1_a_strict_tool_that_a_grammar_lacks_is_named_with_its_place(keyword: str) -> None:
    tools = (Tool("ok", None, None), Tool("f", None, schema_with(keyword), strict=True))
    found = refusal(PLAIN, chat(say("user", "go"), tools=tools, tool_choice=ToolChoice("required")))
    assert found.status == 400
    assert "'f'" in found.message
    assert "properties.t" in found.message


@pytest.mark.parametrize("keyword", LACKING)
def test_row_2_an_answer_of_a_schema_that_is_not_strict_is_best_effort(keyword: str) -> None:
    wanted = JsonSchema(schema_with(keyword), strict=False)
    assert job_of(PLAIN, chat(say("user", "go"), output_format=wanted)).grammar is not None
    wanted = JsonSchema(schema_with(keyword), strict=True)
    assert "properties.t" in refusal(PLAIN, chat(say("user", "go"), output_format=wanted)).message


TWICE = '{"t": [1, 1]}'
ONCE = '{"t": [1, 2]}'
CALL = '<tool_call>\n{"name": "f", "arguments": {"t": [1, 1]}}\n</tool_call>'
SCHEMA = schema_with("uniqueItems")
FORMATS: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "m", "schema": SCHEMA}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "m", "schema": SCHEMA}}},
    "ollama": {"format": SCHEMA},
}
TOLD = ["The answer does not keep to the schema at 't': [1,1] has non-unique elements."]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(tmp_path_factory.mktemp("script"), TWICE, ONCE, CALL) as found:
        yield found


@pytest.mark.parametrize("dialect", FORMATS)
def test_rows_1_and_2_an_answer_that_breaks_the_whole_schema_comes_with_a_warning(
    address: str, dialect: str
) -> None:
    assert ask(address, dialect, TWICE, **FORMATS[dialect])["warnings"] == TOLD
    assert "warnings" not in ask(address, dialect, ONCE, **FORMATS[dialect])


@pytest.mark.parametrize("dialect", FORMATS)
def test_rows_1_and_2_the_end_of_a_stream_has_the_warning(address: str, dialect: str) -> None:
    told = [
        frame for frame in streamed(address, dialect, TWICE, **FORMATS[dialect]) if "warnings" in str(frame)
    ]
    assert len(told) == 1
    assert (told[0].get("response") or told[0])["warnings"] == TOLD


@pytest.mark.parametrize("dialect", FORMATS)
def test_row_1_a_call_that_breaks_its_tools_schema_comes_with_a_warning(address: str, dialect: str) -> None:
    told = ["The call of 'f' does not keep to the tool's schema at 't': [1,1] has non-unique elements."]
    assert ask(address, dialect, CALL, {"f": SCHEMA})["warnings"] == told
    frames = streamed(address, dialect, CALL, tools=[tool_of(dialect, "f", SCHEMA)])
    [last] = [frame for frame in frames if "warnings" in str(frame)]
    assert (last.get("response") or last)["warnings"] == told


def test_row_2_a_stream_with_usage_has_the_warning_beside_the_finish_reason(address: str) -> None:
    for options in ({"include_usage": True}, {"continuous_usage_stats": True}):
        frames = streamed(address, "chat", TWICE, stream_options=options, **FORMATS["chat"])
        [last] = [frame for frame in frames if "warnings" in frame]
        assert last["choices"][0]["finish_reason"] == "stop"
