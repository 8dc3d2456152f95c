"""`<|tool_call>call:f{k:<|"|>v<|"|>}<tool_call|>`: Gemma 4; a `tool_code` fence when it slips."""

from dataclasses import dataclass

from pippin.output.calls import Calls
from pippin.output.notations.gemma_calls import GemmaCalls
from pippin.output.stream import Reading
from pippin.output.tool_parsers.gemma3 import FENCE, read_fence


@dataclass(frozen=True, kw_only=True)
class Gemma4Calls(GemmaCalls):
    def read(self, calls: Calls, opener: str) -> Reading[None]:
        yield from (read_fence(calls) if opener == FENCE else super().read(calls, opener))


FORMAT = Gemma4Calls(
    name="gemma4",
    openers=("<|tool_call>", FENCE),
    closers=("<tool_call|>",),
    fence='<|"|>',
    further_markers=('<|"|>',),
    stops=("<|tool_response>",),
    signs=(("<|tool_call>",),),
    priority=50,
)
