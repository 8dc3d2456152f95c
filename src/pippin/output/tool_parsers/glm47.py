"""`<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`: GLM 4.5 and later, Laguna."""

from pippin.output.notations.tagged_calls import TaggedCalls
from pippin.output.tool_format import History, write_json_tags

FORMAT = TaggedCalls(
    name="glm47",
    aliases=("glm4", "glm4_moe", "glm45", "glm47_moe", "poolside_v1", "laguna"),
    history=History(write=write_json_tags),
    openers=("<tool_call>",),
    closers=("</tool_call>",),
    further_markers=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    body="keys",
    signs=(("<arg_key>",),),
    priority=30,
)
