"""`<seed:think>` reasoning `</seed:think>`: Seed-OSS."""

from pippin.output.reasoning_format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="seed_oss",
    start="<seed:think>",
    end="</seed:think>",
    signs=(("<seed:think>",),),
    priority=20,
)
