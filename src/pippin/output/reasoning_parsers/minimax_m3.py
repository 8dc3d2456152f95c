"""`<mm:think>` reasoning `</mm:think>`: MiniMax M3."""

from pippin.output.reasoning_format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="minimax_m3",
    start="<mm:think>",
    end="</mm:think>",
    signs=(("<mm:think>",),),
    priority=20,
)
