"""A model as Anthropic's Models API describes it: its capabilities under that API's names, and its limits.

A capability is false if a Messages request that uses it is refused here, or if it has no effect.
"""

from typing import Any, Final

from pippin.core.models import ModelInfo

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
EDITS: Final = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")


def as_anthropic(info: ModelInfo, length: int | None) -> dict[str, Any]:
    """The fields that Anthropic's clients read besides the common ones. `length` is the context length in tokens,
    prompt and answer together."""
    return {
        "capabilities": _capabilities(info),
        "lifecycle": "active",
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
        "max_input_tokens": length,
        "max_tokens": length,
    }


def _capabilities(info: ModelInfo) -> dict[str, Any]:
    can = info.capabilities
    answers, thinks, never = _said(can.chat), _said(can.reasoning), _said(False)
    return {
        "batch": answers,
        "citations": never,
        "code_execution": never,
        "context_management": never | dict.fromkeys(EDITS, never),
        "effort": thinks | dict.fromkeys(EFFORTS, thinks),
        "image_input": _said(can.images),
        "pdf_input": answers,
        "server_tools": never | {"code_execution": never, "web_search": never},
        "structured_outputs": answers,
        "thinking": thinks
        | {"types": {"adaptive": thinks, "enabled": thinks, "between_tools": answers, "disabled": answers}},
    }


def _said(supported: bool) -> dict[str, Any]:
    return {"supported": supported}
