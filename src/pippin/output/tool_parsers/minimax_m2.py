"""`<minimax:tool_call><invoke name="f"><parameter name="k">v</parameter></invoke></minimax:tool_call>`."""

from pippin.output.notations.invoke_calls import InvokeCalls
from pippin.output.notations.parameters import Tags

FORMAT = InvokeCalls(
    name="minimax_m2",
    aliases=("minimax",),
    openers=("<minimax:tool_call>",),
    closers=("</minimax:tool_call>",),
    invoke="<invoke",
    tags=Tags(opens="<parameter", close="</parameter>", ends=("</invoke>", "</minimax:tool_call>")),
    signs=(("<minimax:tool_call>",),),
    priority=40,
)
