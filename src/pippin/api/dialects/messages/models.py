"""A model as Anthropic's Models API describes it: what it can do, in that API's words, and its limits.

Each capability says what a request of Messages that uses it gets here: false where it is refused or without effect.
"""

from typing import Any, Final

from pippin.core.models import ModelInfo

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
EDITS: Final = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")


def as_anthropic(info: ModelInfo, length: int | None) -> dict[str, Any]:
    """The fields that its clients read beside those of every model. `length`: the tokens that a conversation may have,
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
        "pdf_input": never,
        "server_tools": never | {"code_execution": never, "web_search": never},
        "structured_outputs": answers,
        "thinking": thinks
        | {"types": {"adaptive": thinks, "enabled": thinks, "between_tools": answers, "disabled": answers}},
    }


def _said(supported: bool) -> dict[str, Any]:
    return {"supported": supported}
