"""Gives the items of a request the form in which the store lists them: every one with its id and status."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from pippin.core.errors import ServerError

Item = dict[str, Any]

_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}


def stored_items(items: Iterable[Item], run_id: str, find: Callable[[str], Item]) -> list[Item]:
    """`find` gives the item that a reference means; references that lead nowhere are dropped."""
    stored: list[Item] = []
    for number, item in enumerate(items):
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        if kind == "item_reference":
            try:
                stored.append(find(str(item.get("id"))))
            except ServerError:
                continue
        else:
            prefix = _PREFIXES.get(kind, "item")
            item_id = item.get("id") or f"{prefix}_{run_id}_in{number}"
            stored.append(_completed(kind, item_id, item))
    return stored


def _completed(kind: str, id: str, item: Item) -> Item:
    added: Item = {"id": id, "type": kind}
    match kind:
        case "message":
            added["status"] = item.get("status") or "completed"
            added["content"] = _content(item)
        case "reasoning":
            added["summary"] = item.get("summary") or []
        case _:
            added["status"] = item.get("status") or "completed"
    return item | added


def _content(message: Item) -> list[Item]:
    """Parts as a list, with the fields that clients expect of each."""
    written = message.get("role") == "assistant"
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text" if written else "input_text", "text": content}]
    parts = []
    for part in content or []:
        match part.get("type"):
            case "output_text":
                parts.append({"annotations": [], **part})
            case "input_image":
                parts.append({"detail": "auto", **part})
            case _:
                parts.append(part)
    return parts
