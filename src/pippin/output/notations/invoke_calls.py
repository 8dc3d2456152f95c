"""Calls as `<invoke name="f"><parameter name="k">v</parameter></invoke>` inside a block, under any prefix."""

from dataclasses import dataclass

from pippin.core.conversation import Tool
from pippin.output.calls import Calls
from pippin.output.grammars import MAYBE_LINE, Grammar, elements, string
from pippin.output.notations.parameters import Tags, read_function
from pippin.output.stream import Reading
from pippin.output.tool_format import SpecialToken, ToolFormat


@dataclass(frozen=True, kw_only=True)
class InvokeCalls(ToolFormat):
    """`invoke` begins a call inside one of `openers`; if `typed`, parameters state whether they are strings."""

    invoke: str
    tags: Tags
    typed: bool = False

    def read(self, calls: Calls, opener: str) -> Reading[None]:
        source = calls.source
        yield from source.space()
        found: str | None = yield from source.expect(self.invoke)
        while found == self.invoke:
            yield from read_function(calls, self.tags, listed=True)
            yield from source.space()
            found = yield from source.literal(self.invoke, *self.closers)

    def grammar(
        self, tools: tuple[Tool, ...], *, required: bool, parallel: bool, special: SpecialToken
    ) -> str:
        grammar = Grammar(special, self.openers)
        call = grammar.either([self.invocation(grammar, tool) for tool in tools])
        rest = f'"\\n" {call}{"+" if parallel else ""} {grammar.mark(self.closers[0])}'
        return grammar.source(self.openers[0], rest, required=required, repeat=False)

    def invocation(self, grammar: Grammar, tool: Tool) -> str:
        """One call, without the block around it."""
        inner = elements(grammar, tool, self._opening, self.tags.close, gap=MAYBE_LINE)
        head = string(f'{self.invoke} name="{tool.name}">\n')
        return f"{head} {inner} {MAYBE_LINE} {string(self.tags.ends[0] + chr(10))}"

    def _opening(self, key: str, plain: bool) -> str:
        typed = f' string="{str(plain).lower()}"' if self.typed else ""
        return string(f'{self.tags.opens} name="{key}"{typed}>')
