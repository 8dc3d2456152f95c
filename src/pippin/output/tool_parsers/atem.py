"""`<atem:function_calls><atem:invoke name="f"><atem:parameter name="k">v...`: the calls of Muse."""

from pippin.output.notations.invoke_calls import InvokeCalls
from pippin.output.notations.parameters import Tags

FORMAT = InvokeCalls(
    name="atem",
    openers=("<atem:function_calls>",),
    closers=("</atem:function_calls>",),
    invoke="<atem:invoke",
    tags=Tags(opens="<atem:parameter", close="</atem:parameter>", ends=("</atem:invoke>",)),
    signs=(("<atem:function_calls>",),),
    priority=30,
)
