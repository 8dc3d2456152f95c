"""Calls inside a tag of their own, `<tool_call>...</tool_call>`, whose body differs between families.

A reader accepts all three bodies, whichever its family writes: JSON, `<function=f>` with parameters, or a name with
keys and values. Models mix them up more often than templates do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.grammars import MAYBE_LINE, Grammar, elements, json_call, string
from pippin.output.notations.json_calls import read_array, read_call
from pippin.output.notations.parameters import Tags, read_function, read_parameters, tool_name
from pippin.output.stream import Markers, Reading
from pippin.output.tool_format import SpecialToken, ToolFormat

FUNCTION = "<function"
FUNCTION_TAGS = Tags(
    opens="<parameter",
    close="</parameter>",
    ends=("</function>", "</tool_call>"),
    abrupt=("</function>\n</tool_call>", "</function></tool_call>"),
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


@dataclass(frozen=True, kw_only=True)
class TaggedCalls(ToolFormat):
    """`body` is the one that the family's template writes and a grammar enforces."""

    body: Literal["json", "function", "keys"] = "json"
    function_tags: Tags = FUNCTION_TAGS
    key_tags: Tags = KEY_TAGS

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        if opener.startswith(FUNCTION):
            yield from read_function(calls, self.function_tags, taken=opener.removeprefix(FUNCTION))
            yield from self._close(calls)
            return
        yield from source.space()
        found = yield from source.literal("{", "[", FUNCTION)
        while found is not None:
            yield from self._read_one(calls, found)
            if (yield from self._close(calls)):
                return
            found = yield from source.literal("{", FUNCTION)
            if found is None:
                return
        yield from self._read_keys(calls)

    def _close(self, calls: Calls) -> Reading[bool]:
        yield from calls.source.space()
        return (yield from calls.source.literal(*self.closers)) is not None

    def _read_one(self, calls: Calls, found: str) -> Reading[None]:
        if found == "{":
            yield from read_call(calls, opened=True)
        elif found == "[":
            yield from read_array(calls)
        else:
            yield from read_function(calls, self.function_tags)

    def _read_keys(self, calls: Calls) -> Reading[None]:
        tags = self.key_tags
        text, found = yield from calls.source.before(Markers((tags.opens, *tags.ends)))
        name = tool_name(text)
        calls.start(name)
        if found in tags.ends:
            calls.end()
        else:
            yield from read_parameters(calls, name, tags, found)

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers, self.leading)
        bodies = [self._body(grammar, tool) for tool in tools]
        rest = f"{grammar.either(bodies)} {grammar.mark(self.closers[0])}"
        return grammar.source(self.openers[0], rest, required=required, repeat=parallel, separator=MAYBE_LINE)

    def _body(self, grammar: Grammar, tool: Tool) -> str:
        match self.body:
            case "json":
                return f'"\\n" {json_call(grammar, tool)} "\\n"'
            case "function":
                tags = self.function_tags
                inner = elements(
                    grammar,
                    tool,
                    lambda key, _: string(f"{tags.opens}={key}>"),
                    tags.close,
                    lines=tags.lines,
                    gap=MAYBE_LINE,
                )
                head = string(f"\n<function={tool.name}>\n")
                return f"{head} {inner} {string('</function>' + chr(10))}"
            case "keys":
                inner = elements(
                    grammar, tool, self._key_opening(grammar), self.key_tags.close, gap=MAYBE_LINE
                )
                return f"{string(tool.name)} {MAYBE_LINE} {inner} {MAYBE_LINE}"

    def _key_opening(self, grammar: Grammar) -> Callable[[str, bool], str]:
        tags = self.key_tags
        opens, head_end, value_opens = map(grammar.mark, (tags.opens, tags.head_end, tags.value_opens or ""))
        return lambda key, _: f"{opens} {string(key)} {head_end} {MAYBE_LINE} {value_opens}"
