"""Calls of Kimi K2: a name with a counter, and JSON."""

import json
import re

from pippin.core.conversation import Tool
from pippin.output.grammars import Grammar, string
from pippin.output.notations.arguments import object_text
from pippin.output.notations.json_calls import read_arguments_or_none
from pippin.output.stream import Calls, Malformed, Markers, Reading
from pippin.output.tool_format import ToolFormat

BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def _named(tools: tuple[Tool, ...], id: str) -> str:
    """The tool that an id names. Of ids that clients spell otherwise, models learn to write `functions_NAME_0` or
    `functionsNAME0`."""
    around = (r"(?:functions[._]?)?", r"(?:[:_]?[0-9]+)?")
    fitting = [tool.name for tool in tools if re.fullmatch(re.escape(tool.name).join(around), id)]
    return max(fitting, key=len, default="")


def _fitting(tools: tuple[Tool, ...], arguments: str) -> str:
    """The only tool that has all of these arguments, and needs no others: some checkpoints write a number as the id."""
    given = set(json.loads(object_text(arguments) or "{}"))
    schemas = ((tool.name, tool.parameters or {}) for tool in tools)
    fitting = [
        name
        for name, schema in schemas
        if {*(schema.get("required") or ())} <= given <= {*(schema.get("properties") or ())}
    ]
    return fitting[0] if given and len(fitting) == 1 else ""


class KimiK2Calls(ToolFormat, frozen=True, kw_only=True):
    openers: tuple[str, ...] = (SECTION, BEGIN)
    closers: tuple[str, ...] = (END, SECTION_END)
    # Some checkpoints write these.
    dropped: tuple[str, ...] = ("<|tool_call_section_begin|>", "<|tool_call_section_end|>")
    further_markers: tuple[str, ...] = (ARGUMENTS,)

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        if opener == SECTION:
            yield from source.space()
            yield from source.expect(BEGIN)
        text, found = yield from source.before(Markers((ARGUMENTS, END)))
        call_id = text.strip()
        name = _named(calls.tools, call_id)
        if name:
            calls.start(name, call_id if call_id != name else None)
        elif not call_id.isdecimal():
            raise Malformed
        arguments = (yield from read_arguments_or_none(calls)) if found == ARGUMENTS else ""
        if not name:
            calls.start(_fitting(calls.tools, arguments))
        calls.end(arguments)

    def lark(self, grammar: Grammar) -> str:
        named = grammar.named_calls(
            lambda name: f"{string(f'functions.{name}:')} /[0-9]{{1,3}}/ {grammar.mark(ARGUMENTS)}",
            grammar.mark(END),
        )
        call = grammar.rule(f"{grammar.mark(BEGIN)} {named}")
        return grammar.source(SECTION, f"{grammar.several(call)} {grammar.mark(SECTION_END)}")
