"""`<longcat_tool_call>f<longcat_arg_key>k</longcat_arg_key>...</longcat_tool_call>`: LongCat Flash."""

from pippin.output.notations.parameters import Tags
from pippin.output.notations.tagged_calls import TaggedCalls

FORMAT = TaggedCalls(
    name="longcat",
    aliases=("longcat_flash_lite",),
    openers=("<longcat_tool_call>",),
    closers=("</longcat_tool_call>",),
    further_markers=(
        "<longcat_arg_key>",
        "</longcat_arg_key>",
        "<longcat_arg_value>",
        "</longcat_arg_value>",
    ),
    body="keys",
    key_tags=Tags(
        opens="<longcat_arg_key>",
        head_end="</longcat_arg_key>",
        value_opens="<longcat_arg_value>",
        close="</longcat_arg_value>",
        ends=("</longcat_tool_call>",),
    ),
    signs=(("<longcat_tool_call>",),),
    priority=40,
)
