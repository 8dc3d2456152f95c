"""`<seed:tool_call><function=f><parameter=k>v</parameter></function></seed:tool_call>`: Seed-OSS."""

from dataclasses import replace

from pippin.output.notations.tagged_calls import FUNCTION_TAGS, TaggedCalls

FORMAT = TaggedCalls(
    name="seed_oss",
    openers=("<seed:tool_call>",),
    closers=("</seed:tool_call>",),
    body="function",
    function_tags=replace(FUNCTION_TAGS, ends=("</function>", "</seed:tool_call>"), abrupt=(), lines=False),
    signs=(("<seed:tool_call>",),),
    priority=40,
)
