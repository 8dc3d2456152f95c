"""Reads `wire.yaml`: what models of each family write on the wire, and what a reader must make of it."""

from pathlib import Path

import msgspec

from pippin.core.conversation import Tool

WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "place": {"type": "object", "properties": {"zip": {"type": "string"}}},
        },
        "required": ["city"],
    },
)
CLOCK = Tool(name="get_time", parameters={"type": "object", "properties": {}})
TOOLS = (WEATHER, CLOCK)

Part = tuple[str, ...]  # kind, text or (name, arguments)


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    wire: str
    parts: tuple[Part, ...]
    source: str  # the public text that it follows
    reasoning: str | None = None


SAMPLES = msgspec.yaml.decode(Path(__file__).with_name("wire.yaml").read_bytes(), type=tuple[Sample, ...])
