"""Pippin's MCP endpoint with the tools that the conformance suite calls, which have nothing to do with models."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import uvicorn

from pippin.mcp.endpoint import McpEndpoint
from pippin.mcp.toolbox import Scope, ServedCall, ServedTool, Sound, ToolAnswer

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
PLAIN: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = {
    "test_simple_text": PLAIN,
    "test_audio_content": PLAIN,
    "test_error_handling": PLAIN,
    "test_tool_with_progress": PLAIN,
    "json_schema_2020_12_tool": SCHEMA,
}


class SuiteToolbox:
    async def tools(self, scope: Scope) -> Sequence[ServedTool]:
        return [
            ServedTool(name=name, title=name, description="For the suite.", arguments=schema)
            for name, schema in TOOLS.items()
        ]

    def schema_of(self, name: str) -> dict[str, Any] | None:
        return TOOLS.get(name)

    async def call(self, call: ServedCall) -> ToolAnswer:
        match call.tool:
            case "test_audio_content":
                return ToolAnswer(text="A sound.", sound=Sound(data=b"RIFF", media="audio/wav"))
            case "test_error_handling":
                return ToolAnswer(text="This tool intentionally returns an error for testing", is_error=True)
            case "test_tool_with_progress":
                for words in ("a little", "half", "all"):
                    await call.tell(words)
                    await asyncio.sleep(0.05)
        return ToolAnswer(text="This is a simple text response for testing.")


if __name__ == "__main__":
    uvicorn.run(
        McpEndpoint(SuiteToolbox(), "", 1 << 20), port=int(sys.argv[1]), lifespan="off", log_level="error"
    )
