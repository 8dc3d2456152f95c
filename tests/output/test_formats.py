"""Names: every one that the replaced systems accept is known, and the documentation lists them all."""

import json

import pytest

from pippin.core.errors import ServerError
from pippin.output.formats import reasoning_format, tool_format, tool_formats
from tests.output import formats_table
from tests.output.reading import fold, read, reader_of
from tests.output.wire import TOOLS as TOOLS_ON_OFFER

TOOLS = [
    "atem",
    "gemma4",
    "cohere2_moe",
    "minimax_m3",
    "minimax_m2",
    "minicpm5",
    "longcat",
    "glm47",
    "pythonic",
    "qwen3_coder",
    "kimi_k2",
    "mistral",
    "harmony",
    "json_tools",
    "hermes",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl",
    "iquest_coder_v1",
    "nemotron3_nano",
    "step_35",
    "glm4_moe",
    "functiongemma",
    "solar_open",
    "longcat_flash_lite",
    "qwen3_next",
    "auto",
    "generic",
    "qwen",
    "qwen3_xml",
    "qwen3.5",
    "llama",
    "llama3",
    "llama4",
    "nous",
    "deepseek",
    "deepseek_v3",
    "deepseek_r1",
    "deepseek_v4",
    "dsml",
    "kimi",
    "moonshot",
    "granite",
    "granite3",
    "nemotron",
    "nemotron3",
    "xlam",
    "functionary",
    "meetkai",
    "glm4",
    "gpt-oss",
    "minimax",
    "step3p5",
    "step",
    "poolside_v1",
    "function_gemma",
    "kimi_k3",
    "laguna",
    "muse_spark",
]
REASONING = [
    "hermes",
    "qwen3",
    "glm4_moe",
    "qwen3_moe",
    "qwen3_vl",
    "qwen3_5",
    "qwen3_next",
    "glm47_flash",
    "minimax_m2",
    "nemotron3_nano",
    "solar_open",
    "gemma4",
    "kimi_k2",
    "mixed_think_tool_handoff",
    "step_35",
    "harmony",
    "deepseek_r1",
    "deepseek_v4",
    "gpt_oss",
    "glm4",
    "mistral",
    "poolside_v1",
    "step3p5",
]


@pytest.mark.parametrize("name", TOOLS)
def test_a_replaced_systems_tool_parser_is_known(name: str) -> None:
    assert tool_format(name)


@pytest.mark.parametrize("name", REASONING)
def test_a_replaced_systems_reasoning_parser_is_known(name: str) -> None:
    assert reasoning_format(name)


def test_names_are_found_in_any_case_and_with_hyphens() -> None:
    assert tool_format("Qwen3-Coder") is tool_format("qwen3_coder")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ServerError) as raised:
        tool_format("no_such_format")
    assert "qwen3_coder" in raised.value.report.message
    with pytest.raises(ServerError) as raised:
        reasoning_format("no_such_format")
    assert "deepseek_r1" in raised.value.report.message


def test_the_documentation_is_up_to_date() -> None:
    page = formats_table.PAGE.read_text(encoding="utf-8")
    assert formats_table.with_tables(page) == page


@pytest.mark.parametrize(
    "name", [name for name in sorted(tool_formats()) if tool_format(name).history.write is not None]
)
def test_what_a_format_writes_it_reads(name: str) -> None:
    write = tool_format(name).history.write
    assert write
    given = {"city": 'Zürich "x"\n<b>', "days": 3, "metric": True, "note": None, "tags": ["a", "b"]}
    wire = f"Ok.\n{write('get_weather', given)}\n{write('get_time', {})}"
    text, *calls = fold(read(reader_of(name, tools=TOOLS_ON_OFFER), list(wire)))
    assert text == ("text", "Ok.")
    assert [(call[1], json.loads(call[2])) for call in calls] == [("get_weather", given), ("get_time", {})]


@pytest.mark.parametrize("name", sorted(tool_formats()))
def test_openers_and_ends_are_markers(name: str) -> None:
    found = tool_format(name)
    assert {*found.openers, *found.closers, *found.dropped} <= set(found.markers)
