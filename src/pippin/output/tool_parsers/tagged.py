"""Calls inside a tag of their own, `<tool_call>...</tool_call>`, whose body differs between families.

A reader accepts all three bodies, whichever its family writes: JSON, `<function=f>` with parameters, or a name with
keys and values. Models mix them up more often than templates do.
"""

import re
import shlex
from typing import Literal

from pippin.core.conversation import Tool
from pippin.output.grammars import MAYBE_LINE, Grammar, string
from pippin.output.notations.arguments import Arguments
from pippin.output.notations.json_calls import read_arguments, read_array, read_call
from pippin.output.notations.parameters import Tags, read_function, read_parameters, tool_name
from pippin.output.stream import Calls, Malformed, Markers, Reading
from pippin.output.tool_format import History, ToolFormat, write_json_tags

FUNCTION = "<function"
LONGEST_PLAIN = 2048  # characters of a call without tags
BRACKET = "[Calling tool:"
FUNCTION_TAGS = Tags(
    opens="<parameter",
    close="</parameter>",
    ends=("</function>", "</tool_call>"),
    lines=True,
    untyped="string",
)
"""`<parameter=k>` newline v newline `</parameter>`: Qwen3-Coder, Nemotron 3, Step 3.5."""

KEY_TAGS = Tags(
    opens="<arg_key>",
    head_end="</arg_key>",
    value_opens="<arg_value>",
    close="</arg_value>",
    ends=("</tool_call>",),
)
"""A name, and each key and value in an element of its own; families may name themselves in all tags."""


def _end_plain(calls: Calls, text: str) -> None:
    """A call as a name alone, `f {"a": 1}` or `f a=1 b=2`, as mlx-lm's parser reads GLM's slips. Raises `Malformed`."""
    name, _, rest = re.sub(r"\s+", " ", text.strip(), count=1).partition(" ")
    name = tool_name(name)
    calls.start(name)
    if rest.startswith("{"):
        calls.end(rest)
        return
    arguments = Arguments(calls.schema(name), "json")
    try:
        words = shlex.split(rest)
    except ValueError:
        raise Malformed from None
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise Malformed
        arguments.add(key, value)
    calls.end(arguments.json)


def _read_bracket(calls: Calls) -> Reading[None]:
    name, _ = yield from calls.source.before(Markers(("(",)))
    calls.start(tool_name(name))
    yield from calls.source.space()
    arguments = ""
    if (yield from calls.source.peek()) != ")":
        arguments = yield from read_arguments(calls)
        yield from calls.source.space()
    yield from calls.source.literal(")]")
    calls.end(arguments)


class TaggedCalls(ToolFormat, frozen=True, kw_only=True):
    """`body` is the one that the family's template writes and a grammar enforces."""

    openers: tuple[str, ...] = ("<tool_call>", "<function=")
    closers: tuple[str, ...] = ("</tool_call>",)
    history: History = History(write=write_json_tags)
    body: Literal["json", "function", "keys"] = "json"
    function_tags: Tags = FUNCTION_TAGS
    key_tags: Tags = KEY_TAGS

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        if opener == BRACKET:
            yield from _read_bracket(calls)
            return
        if opener.startswith(FUNCTION):
            yield from read_function(calls, self.function_tags, taken=opener.removeprefix(FUNCTION))
            return
        yield from source.space()
        found = yield from source.literal("{", "[", FUNCTION)
        if found is None:
            yield from self._read_keys(calls)
        while found is not None:
            if found == "{":
                yield from read_call(calls, opened=True)
            elif found == "[":
                yield from read_array(calls)
            else:
                yield from read_function(calls, self.function_tags)
            yield from source.space()
            found = yield from source.literal("{", FUNCTION)

    def _read_keys(self, calls: Calls) -> Reading[None]:
        tags, source = self.key_tags, calls.source
        markers = Markers((tags.opens, tags.head_end, *tags.ends))
        text, found = yield from source.before(markers, LONGEST_PLAIN)
        if found in tags.ends:
            _end_plain(calls, text)
            return
        key: str | None = None
        if found == tags.head_end:  # the tag before the first key is missing
            names = (tool.name for tool in calls.tools if text.lstrip().startswith(tool.name))
            text, key = max(names, key=len, default=""), text.lstrip()
            key = key.removeprefix(text)
        name = tool_name(text)
        calls.start(name)
        yield from read_parameters(calls, name, tags, tags.opens, key)

    def lark(self, grammar: Grammar) -> str:
        rest = grammar.calls(lambda tool: self._body(grammar, tool))
        if self.body != "keys":  # which end with the block
            rest += f" {grammar.mark(self.closers[0])}"
        return grammar.source(self.openers[0], rest, repeat=True, separator=MAYBE_LINE)

    def _body(self, grammar: Grammar, tool: Tool) -> str:
        match self.body:
            case "json":
                return f'"\\n" {grammar.json_call(tool)} "\\n"'
            case "function":
                arguments = grammar.tagged_call(tool, self.function_tags, lambda key, _: f"={key}")
                return f"{string(f'{chr(10)}<function={tool.name}>')} {arguments} {MAYBE_LINE}"
            case "keys":
                return f"{string(tool.name)} {grammar.tagged_call(tool, self.key_tags, lambda key, _: key)}"
