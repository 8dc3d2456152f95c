"""Driving a reader in tests: any pieces in, folded parts out."""

import itertools
from collections.abc import Iterable
from typing import Final
from unittest.mock import patch

from hypothesis import settings

from pippin.core.completion import collect
from pippin.core.conversation import Tool, ToolChoice
from pippin.core.events import Event, PartDelta, PartEnded, PartStarted
from pippin.output import reader as output_reader
from pippin.output.formats import reasoning_format, tool_format
from pippin.output.reader import Formats, Markup, OutputReader, ToolUse

OF_EACH_FORMAT: Final = settings(max_examples=max(settings.default.max_examples // 3, 2))
"""For what is tried with each of dozens of formats: fewer examples of each than of what is tried once."""


def reader_of(
    format: str | None,
    reasoning: str | None = None,
    *,
    tools: tuple[Tool, ...] = (),
    choice: ToolChoice | None = None,
    parallel: bool = True,
    thinking: bool = False,
    markup: Markup | None = None,
    may_think: bool = False,
) -> OutputReader:
    ids = map("call_{}".format, itertools.count())
    with patch.object(output_reader, "random_call_id", lambda *_: next(ids)):
        return OutputReader(
            0,
            Formats(
                tools=tool_format(format) if format else None,
                reasoning=reasoning_format(reasoning) if reasoning else None,
            ),
            ToolUse(tools=tools, choice=choice or ToolChoice(), parallel=parallel),
            thinking="begun" if thinking else "possible" if may_think else "marked",
            markup=markup or Markup(),
        )


def read(reader: OutputReader, pieces: Iterable[str], *, truncated: bool = False) -> list[Event]:
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.finish(truncated=truncated)


def fold(events: list[Event]) -> tuple[tuple[str, ...], ...]:
    choices = collect(events).choices
    parts = choices[0].parts if choices else []
    return tuple(
        (part.kind, part.name or "", part.text) if part.kind == "tool_call" else (part.kind, part.text)
        for part in parts
    )


def assert_grammar(events: list[Event]) -> None:
    """(PartStarted PartDelta* PartEnded)*, indices counting from 0."""
    index, open_ = -1, False
    for event in events:
        match event:
            case PartStarted():
                assert not open_
                assert event.index == index + 1
                index, open_ = event.index, True
            case PartDelta():
                assert open_
                assert event.index == index
                assert event.text
            case PartEnded():
                assert open_
                assert event.index == index
                open_ = False
            case _:
                raise AssertionError(event)
    assert not open_
