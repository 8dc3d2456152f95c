"""`<longcat_think>` reasoning `</longcat_think>`: LongCat Flash."""

from pippin.output.reasoning_format import ReasoningFormat

FORMAT = ReasoningFormat(
    name="longcat",
    start="<longcat_think>",
    end="</longcat_think>",
    signs=(("<longcat_think>",),),
    priority=20,
)
