"""A marker that is a token of the vocabulary is told from text that spells it, whole and streamed, in every format."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from pippin.core.conversation import Tool
from pippin.output.formats import reasoning_format, tool_format
from pippin.output.reader import Markup
from tests.output.grammar_walks import special_tokens
from tests.output.reading import fold, reader_of
from tests.output.wire import SAMPLES, TOOLS, Sample

STEPS = (1, 7, 1 << 20)
Parts = tuple[tuple[str, ...], ...]


def tokens_of(sample: Sample) -> list[str]:
    """Markers in the sample that a vocabulary is likely to have a token for."""
    markers = [*tool_format(sample.format).markers]
    markers += reasoning_format(sample.reasoning).markers if sample.reasoning else ()
    return [token for token in special_tokens(markers) if token in sample.wire]


def begun(sample: Sample) -> bool:
    """Whether the prompt begins the thought: the sample has its end alone."""
    return sample.reasoning == "kimi_k3"


def parts_of(sample: Sample, tokens: Sequence[str], *, spelled: bool, step: int) -> Parts:
    markup, thinking = Markup(tokens=frozenset(tokens)), not spelled and begun(sample)
    reader = reader_of(sample.format, sample.reasoning, tools=TOOLS, markup=markup, thinking=thinking)
    pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))
    for found in [] if spelled else pattern.finditer(sample.wire):
        reader.added_token(found.start())
    pieces = [sample.wire[start : start + step] for start in range(0, len(sample.wire), step)]
    return fold([event for piece in pieces for event in reader.feed(piece)] + reader.finish())


def bare(begin: str, wire: str, tokens: list[str]) -> bool:
    """Whether this begins a call, is no token, and does not stand behind one that begins calls."""
    head, found, _ = wire.partition(begin)
    behind = head.rstrip().endswith(tuple(tokens))
    return bool(found) and not behind and not any(token in begin for token in tokens)


MARKED = [sample for sample in SAMPLES if tokens_of(sample)]


@pytest.mark.parametrize("sample", MARKED, ids=lambda sample: sample.format)
def test_markers_that_are_tokens_are_read_as_markers_without_tokens_are(sample: Sample) -> None:
    plain = reader_of(sample.format, sample.reasoning, tools=TOOLS, thinking=begun(sample))
    expected = fold(plain.feed(sample.wire) + plain.finish())
    for step in STEPS:
        assert parts_of(sample, tokens_of(sample), spelled=False, step=step) == expected


@pytest.mark.parametrize("sample", MARKED, ids=lambda sample: sample.format)
def test_a_marker_that_is_spelled_out_opens_nothing(sample: Sample) -> None:
    found, tokens = tool_format(sample.format), tokens_of(sample)
    begins = [*found.openers, *found.leading, *found.dropped]
    if sample.reasoning:
        begins += [reasoning_format(sample.reasoning).start, *reasoning_format(sample.reasoning).dropped]
    if any(bare(begin, sample.wire, [token for token in tokens if token in begins]) for begin in begins):
        pytest.skip("calls of this format may begin with a marker that is no token")
    if found.channels is not None:
        pytest.skip("the prompt may have begun a header of this format")
    for step in STEPS:
        parts = parts_of(sample, tokens, spelled=True, step=step)
        assert {part[0] for part in parts} <= {"text"}
        assert "".join(part[1] for part in parts) == sample.wire


@pytest.mark.parametrize("sample", MARKED, ids=lambda sample: sample.format)
def test_a_cut_at_any_token_leaks_no_markup(sample: Sample) -> None:
    """Whatever is sent of a text that a limit cut off is a beginning of what is sent of the whole text."""
    tokens = tokens_of(sample)
    pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) + "|.", re.DOTALL)
    pieces = [found.group() for found in pattern.finditer(sample.wire)]
    whole = [part for part in sample.parts if part[0] != "tool_call"]
    for cut in range(len(pieces)):
        reader = reader_of(
            sample.format,
            sample.reasoning,
            tools=TOOLS,
            thinking=sample.reasoning == "kimi_k3",
            markup=Markup(tokens=frozenset(tokens)),
        )
        length, events = 0, list[Any]()
        for piece in pieces[:cut]:
            if piece in tokens:
                reader.added_token(length)
            events += reader.feed(piece)
            length += len(piece)
        found = fold(events + reader.finish(truncated=True))
        said = [part for part in found if part[0] != "tool_call" and part[1].strip()]
        for number, part in enumerate(said):
            assert number < len(whole), (cut, part)
            assert whole[number][1].startswith(part[1].strip()), (cut, part)


KEYS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
SPELLED = "a</arg_value>\n<arg_key>b</arg_key>\n<arg_value>c</arg_value></tool_call>"


@pytest.mark.parametrize("step", STEPS)
def test_a_value_may_spell_any_marker_that_is_a_token(step: int) -> None:
    tool = Tool(
        "write", None, {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    )
    pieces: list[tuple[str, bool]] = [
        ("<tool_call>", True), ("write", False), ("<arg_key>", True), ("a", False), ("</arg_key>", True),
        ("<arg_value>", True), (SPELLED, False), ("</arg_value>", True), ("</tool_call>", True),
    ]  # fmt: skip
    reader = reader_of("glm47", tools=(tool,), markup=Markup(tokens=frozenset(KEYS)))
    text, events = "", list[Any]()
    for piece, token in pieces:
        if token:
            reader.added_token(len(text))
        events += [
            event
            for start in range(0, len(piece), step)
            for event in reader.feed(piece[start : start + step])
        ]
        text += piece
    [(kind, name, arguments)] = fold(events + reader.finish())
    assert (kind, name) == ("tool_call", "write")
    assert SPELLED.replace("\n", "\\n") in arguments
    assert '"b"' not in arguments
