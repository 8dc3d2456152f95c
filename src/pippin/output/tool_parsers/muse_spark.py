"""Calls of Muse Spark: those of `atem`, in messages that a header routes (`to=NAME<|message|>`)."""

from pippin.output.invoke_calls import InvokeCalls
from pippin.output.parameters import Tags
from pippin.output.reasoning_parsers.muse_spark import CHANNELS

FORMAT = InvokeCalls(
    name="muse_spark",
    openers=("<atem:function_calls>",),
    closers=("</atem:function_calls>",),
    invoke="<atem:invoke",
    tags=Tags(opens="<atem:parameter", close="</atem:parameter>", ends=("</atem:invoke>",)),
    channels=CHANNELS,
    signs=(("<atem:function_calls>", "to=self<|message|>"), ("<atem:function_calls>", "<|eom|>")),
    priority=35,
)
