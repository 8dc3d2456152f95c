"""The tools that the Responses API knows by type alone and that clients run, as functions."""

from typing import Any, Final, Literal

from pippin.core.conversation import Tool

CallKind = Literal["function", "custom", "local_shell", "shell", "apply_patch"]

_TEXT: Final = {"type": "string"}
CUSTOM_INPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}
_LOCAL_SHELL: Final = Tool(
    "local_shell",
    "Runs a command on the user's machine and returns its output.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": _TEXT, "description": "The program and its arguments."},
            "working_directory": _TEXT,
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
    },
)
_SHELL: Final = Tool(
    "shell",
    "Runs shell commands on the user's machine and returns their output.",
    {
        "type": "object",
        "properties": {
            "commands": {"type": "array", "items": _TEXT, "description": "Shell commands, run one by one."},
            "timeout_ms": {"type": "integer"},
            "max_output_length": {"type": "integer"},
        },
        "required": ["commands"],
    },
)
_APPLY_PATCH: Final = Tool(
    "apply_patch",
    "Creates, changes or deletes a file on the user's machine.",
    {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _TEXT,
            "diff": {"type": "string", "description": "The change as a V4A diff; not for delete_file."},
        },
        "required": ["type", "path"],
    },
)
BUILT_IN: Final[dict[str, tuple[CallKind, Tool]]] = {
    "local_shell": ("local_shell", _LOCAL_SHELL),
    "shell": ("shell", _SHELL),
    "apply_patch": ("apply_patch", _APPLY_PATCH),
}
