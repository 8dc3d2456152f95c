"""Every format against what its family writes, cut at every place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.output.formats import tool_format, tool_formats
from tests.output.reading import OF_EACH_FORMAT, assert_grammar, fold, read, reader_of
from tests.output.wire import SAMPLES, TOOLS, Sample


def read_sample(sample: Sample, pieces: list[str], truncated: bool = False) -> tuple[tuple[str, ...], ...]:
    thinking = sample.reasoning == "kimi_k3"
    reader = reader_of(sample.format, sample.reasoning, tools=TOOLS, thinking=thinking)
    events = read(reader, pieces, truncated=truncated)
    assert_grammar(events)
    return fold(events)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_a_familys_wire_text_is_read(sample: Sample) -> None:
    assert read_sample(sample, [sample.wire]) == sample.parts


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_one_character_at_a_time_gives_the_same_parts(sample: Sample) -> None:
    assert read_sample(sample, list(sample.wire)) == sample.parts


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_any_cut_in_two_gives_the_same_parts(sample: Sample) -> None:
    for cut in range(1, len(sample.wire)):
        assert read_sample(sample, [sample.wire[:cut], sample.wire[cut:]]) == sample.parts, cut


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_arguments_are_valid_json(sample: Sample) -> None:
    for part in read_sample(sample, [sample.wire]):
        if part[0] == "tool_call":
            assert isinstance(json.loads(part[2]), dict)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_an_answer_cut_off_reads_the_same_in_any_pieces(sample: Sample) -> None:
    for end in range(0, len(sample.wire), 7):
        cut = sample.wire[:end]
        for truncated in (False, True):
            assert read_sample(sample, list(cut), truncated) == read_sample(sample, [cut], truncated)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_without_tools_the_wire_text_is_text(sample: Sample) -> None:
    if tool_format(sample.format).channels or sample.reasoning:
        pytest.skip("the markers of channels mean something without tools")
    assert fold(read(reader_of(sample.format), [sample.wire])) == (("text", sample.wire),)


def test_every_format_has_a_sample() -> None:
    assert {tool_format(name).name for name in sorted(tool_formats())} == {
        tool_format(sample.format).name for sample in SAMPLES
    }


PIECES = [
    *{marker for name in sorted(tool_formats()) for marker in tool_format(name).markers},
    *"{}[]()\"'\\<>|:,=\n ab1",
    "get_weather",
    '"name": ',
    '"arguments": ',
    "<think>",
    "</think>",
    "call:",
    "=get_weather>",
    '="get_weather">',
    "<parameter=city>",
    "</parameter>",
    "functions.get_weather:0",
    "to=functions.get_weather",
    "analysis",
]


@pytest.mark.parametrize("name", sorted({tool_format(name).name for name in sorted(tool_formats())}))
@OF_EACH_FORMAT
@given(data=st.data())
def test_any_text_is_read_alike_in_any_pieces_and_nothing_raises(name: str, data: st.DataObject) -> None:
    local = [*tool_format(name).markers] * 3 + PIECES
    pieces = data.draw(st.lists(st.sampled_from(local), max_size=30))
    whole = "".join(pieces)
    truncated = data.draw(st.booleans())
    events = read(reader_of(name, "qwen3", tools=TOOLS), [whole], truncated=truncated)
    assert_grammar(events)
    again = read(reader_of(name, "qwen3", tools=TOOLS), list(whole), truncated=truncated)
    assert_grammar(again)
    assert fold(events) == fold(again)


@pytest.mark.parametrize("name", sorted({tool_format(name).name for name in sorted(tool_formats())}))
@OF_EACH_FORMAT
@given(st.text(alphabet="ab \n.,:;!?-_*#()'\"{}[]", max_size=80))
def test_text_without_markers_is_kept_to_the_letter(name: str, text: str) -> None:
    parts = fold(read(reader_of(name, "qwen3", tools=TOOLS), list(text)))
    assert parts == ((("text", text),) if text else ())
