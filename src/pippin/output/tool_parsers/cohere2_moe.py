"""`<|START_ACTION|>[{"tool_name": "f", "parameters": {...}}]<|END_ACTION|>`: Command R7B and A."""

from pippin.output.notations.json_envelopes import JsonEnvelope

FORMAT = JsonEnvelope(
    name="cohere2_moe",
    aliases=("cohere", "cohere_command"),
    openers=("<|START_ACTION|>",),
    closers=("<|END_ACTION|>",),
    name_key="tool_name",
    arguments_key="parameters",
    id_key="tool_call_id",
    begin="[\n    ",
    between=",\n    ",
    end="\n]",
    signs=(("<|START_ACTION|>",),),
    priority=40,
)
