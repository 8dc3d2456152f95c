"""How a chat template marks turns, and whether it writes all of tools, of their calls and of their results.

No published template of those that tests use begins two speakers' turns alike or leaves a turn open.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

from pippin.core.conversation import Message, Part, Role, Text, Tool, ToolCall, ToolResult
from pippin.core.errors import ServerError
from pippin.core.verification import Finding
from pippin.engines.language.prompt.rendering import TemplateWriter
from pippin.engines.verify.findings import finding

PAIRS: Final = {
    "<|im_start|>": "<|im_end|>",
    "<start_of_turn>": "<end_of_turn>",
    "<|start_header_id|>": "<|eot_id|>",
}
"""What ends a turn, by what begins it and stands before the speaker's name."""
NAMES: Final = frozenset("system developer user assistant model tool ipython environment observation".split())
HEAD: Final = re.compile(r"([^\s<]*)(?:<\|end_header_id\|>)?(\s*)")
"""The speaker's name, and the white space behind it."""
SYSTEM, USER, ANSWER, NEXT = (f'QX{place}\'s "words" < & more' for place in "ABCD")
RESULT: Final = 'Is "A < B & C" it\'s?\n    x = {}  # é ' + "and so on " * 100 + "QXE"
CALL: Final = ToolCall("call12345", "alpha", '{"qkey": "QXF"}')
SCHEMA: Final = {"type": "object", "properties": {"qkey": {"type": "string", "description": "A key."}}}
TOOLS: Final = tuple(Tool(name, f"Does {name}.", SCHEMA) for name in ("alpha", "beta"))


def check(written: TemplateWriter) -> Iterator[Finding]:
    """Render a conversation with and without tools. What the template refuses is told as a conversation."""
    turns = (_said("user", USER), _said("assistant", ANSWER), _said("user", NEXT))
    alone, whole = (_written(written, each) for each in (turns, (_said("system", SYSTEM), *turns)))
    yield from _pieces(alone)
    for start, end in PAIRS.items():
        yield from _pair(start, end, whole or alone)
    with_call = (_said("user", USER), Message("assistant", (CALL,)), _result())
    offered = written.converter.traits.tools
    tools = _written(written, with_call, TOOLS) if offered else ""
    yield from _tools(tools, results=written.converter.traits.tool_results)
    if written.converter.traits.system:
        both = _written(written, (_said("system", SYSTEM), turns[0]), TOOLS) if offered else ""
        if any(text and text.count(SYSTEM) != 1 for text in (whole, both)):
            yield finding("words-changed", role="system")
    if "None" in alone + whole and "None" not in written.template.source:
        yield finding("none-written")


def _said(role: Role, words: str) -> Message:
    return Message(role, (Text(words),))


def _result() -> Message:
    part: Part = ToolResult(CALL.id, (Text(RESULT),))
    return Message("tool", (part,))


def _written(written: TemplateWriter, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> str:
    try:
        return written.render(messages, tools, True)
    except ServerError:
        return ""


def _pieces(text: str) -> Iterator[Finding]:
    """What stands between the words of three turns."""
    found = re.split("|".join(map(re.escape, (USER, ANSWER, NEXT))), text)
    if len(found) != 4:
        return
    if found[1] == found[2] and found[1].strip():
        yield finding("speakers-alike", piece=found[1])
    for start, end in PAIRS.items():
        if all(start in each for each in found) and all(end in each for each in found[1:]):
            heads = [match[2] for each in found if (match := HEAD.match(each.rpartition(start)[2]))]
            between = [each.partition(end)[2].partition(start)[0] for each in found[1:]]
            for unlike in map(sorted, map(set, (heads, between))):
                if len(unlike) > 1:
                    yield finding("turn-spacing", one=unlike[0], other=unlike[-1])


def _pair(start: str, end: str, text: str) -> Iterator[Finding]:
    """Turns that are begun and ended with known marks; the answer's is begun."""
    begun, ended = text.count(start), text.count(end)
    if not begun or not ended:
        return
    if begun != ended + 1:
        yield finding("turns-unended", start=start, begun=begun, end=end, ended=ended)
    names = (match[1] for each in text.split(start)[1:] if (match := HEAD.match(each)))
    for name in sorted({*names} - NAMES - {""}):
        # Where no line end follows a name, words do.
        if "QX" not in name:
            yield finding("speaker-unknown", name=name)


def _tools(text: str, *, results: bool) -> Iterator[Finding]:
    """Two tools, a call and its result."""
    if not text:
        return
    parts = {"tool alpha": "Does alpha", "tool beta": "Does beta", "call's arguments": "QXF"}
    lost = [name for name, words in parts.items() if words not in text]
    if lost and len(lost) < len(parts):
        yield finding("tools-partly", lost=lost)
    call = text.rpartition(USER)[2].partition("QXE")[0]
    begun, ended = call.count("<tool_call>"), call.count("</tool_call>")
    if begun != ended:
        yield finding("call-marks", mark="tool_call", begun=begun, ended=ended)
    forms = (RESULT, *(json.dumps(RESULT, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)))
    if results and not any(form in text for form in forms):
        yield finding("words-changed", role="tool")
