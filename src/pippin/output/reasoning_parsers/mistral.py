"""`[THINK]` reasoning `[/THINK]`: Magistral, Ministral 3."""

from pippin.output.reasoning_format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="mistral",
    aliases=("magistral",),
    start="[THINK]",
    end="[/THINK]",
    signs=(("[THINK]",),),
    priority=20,
)
