"""`<TOOLCALL>[{"name": "f", "arguments": {...}}]</TOOLCALL>`: Nemotron Nano 2, Llama Nemotron."""

from pippin.output.notations.json_envelopes import JsonEnvelope

FORMAT = JsonEnvelope(
    name="nemotron_v2",
    aliases=("llama_nemotron",),
    openers=("<TOOLCALL>",),
    closers=("</TOOLCALL>",),
    signs=(("<TOOLCALL>",),),
    priority=40,
)
