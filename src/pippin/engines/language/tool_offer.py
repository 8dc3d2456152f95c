"""The tools on offer, as a chat template expects them, or as words for templates that know nothing of tools."""

import json
from typing import Any

from pippin.core.conversation import Tool
from pippin.engines.language.template_traits import Messages, Traits
from pippin.output.tool_format import Write

OFFER = """You can call functions. These are on offer, one JSON object in each line:
<tools>
{tools}
</tools>
To call one, write its name and its arguments in this form, and nothing else around them:
{example}"""
"""For templates that know nothing of tools."""


def described(tool: Tool, traits: Traits) -> dict[str, Any]:
    """OpenAI's way of naming a tool, with what the template can't do without."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None or traits.descriptions:
        function["description"] = tool.description or ""
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function["parameters"] = parameters if traits.null_types else without_null(parameters)
    return {"type": "function", "function": function}


def without_null(schema: Any) -> Any:
    """A schema whose lists of types do not say that a value may be null: some templates loop for ever over it."""
    if isinstance(schema, list):
        return [without_null(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: without_null(held) for key, held in schema.items()}
    match schema.get("type"):
        case list(types):
            kept = [kind for kind in types if kind != "null"]
            found["type"] = kept[0] if len(kept) == 1 else kept
        case "null":
            del found["type"]
    return found


def with_words(entries: Messages, offered: list[dict[str, Any]], write: Write) -> Messages:
    """The conversation with the offer in its system message, and how a call is written."""
    lines = "\n".join(json.dumps(entry["function"], ensure_ascii=False) for entry in offered)
    offer = OFFER.format(tools=lines, example=write("function_name", {"argument": "value"}))
    if entries and entries[0]["role"] in ("system", "developer"):
        return [{**entries[0], "content": f"{entries[0]['content']}\n\n{offer}"}, *entries[1:]]
    return [{"role": "system", "content": offer}, *entries]
