"""Calls of Poolside's Laguna: GLM's layout."""

from pippin.output.notations.tagged_calls import TaggedCalls
from pippin.output.tool_format import History, write_json_tags

FORMAT = TaggedCalls(
    name="poolside_v1",
    aliases=("laguna",),
    history=History(write=write_json_tags),
    openers=("<tool_call>",),
    closers=("</tool_call>",),
    further_markers=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    body="keys",
)
