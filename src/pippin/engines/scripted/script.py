"""The script: a JSON file of rules that say what the model answers, and how well it behaves."""

import re
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from pippin.core.conversation import Reasoning, Text, ToolCall, ToolResult
from pippin.core.decoding import from_json
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import Capabilities
from pippin.core.requests import GenerationRequest

EVERYTHING: Final = Capabilities(
    chat=True, tools=True, reasoning=True, images=True, audio=True, video=True, infill=True, embeddings=True
)


class When(Struct, frozen=True, forbid_unknown_fields=True):
    """All that is set must hold. Texts are regular expressions, searched for."""

    user: str | None = None  # in the last user message
    system: str | None = None  # in the system messages
    prompt: str | None = None  # in a raw prompt
    tool_result: str | None = None  # in the tool results that end the conversation
    turn: int | None = None  # the assistant's turns so far, and this one
    tools: tuple[str, ...] = ()  # all are offered
    model: str | None = None  # the name that the request used, as it reached the worker


class ScriptedCall(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """`exit`, `abort`: the process ends so; `error`: the step raises; `stall`: the engine does not come back from its
    step; `memory`: it takes memory without end."""

    kind: Literal["exit", "abort", "error", "stall", "memory"]
    after: int = 0  # tokens of the answer that come before


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule of the script: the answer where `when` holds.

    The raw text is `think` between the reasoning markers, `say`, and those of `calls` whose tools are offered, in the
    tool format's markup.
    """

    when: When = field(default_factory=When)
    think: str | None = None
    say: str | tuple[str, ...] | None = None  # a list is the exact tokens
    any_of: tuple[str, ...] = ()  # instead of `say`: one of these, chosen by the seed; greedy: the first
    calls: tuple[ScriptedCall, ...] = ()
    delay: float = 0.0  # seconds before the first token
    gap: float | None = None  # seconds between tokens
    cached_tokens: int = 0  # of the prompt, as if read from the prefix cache
    error: ErrorReport | None = None  # refuse the request
    fault: Fault | None = None


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """The first rule that holds answers; where none does, the last user message is echoed."""

    rules: tuple[Rule, ...] = ()
    context_window: int = 4096
    tool_format: str = "json_tools"
    reasoning_format: str = "think"
    capabilities: Capabilities = EVERYTHING
    dimensions: int = 16  # of embeddings
    gap: float = 0.0  # seconds between tokens, where a rule says nothing
    load_seconds: float = 0.0  # until the weights are there
    load_error: str | None = None
    load_fault: Literal["exit", "abort", "error"] | None = None
    ballast_mb: int = 0  # memory that the weights take


def load_script(path: str | None) -> Script:
    """Read a script; an empty one for no path. Raises `ServerError`."""
    if path is None or not path.endswith(".script.json"):
        return Script()
    try:
        script = from_json(Path(path).read_bytes(), Script)
        for when in (rule.when for rule in script.rules):
            for pattern in (when.user, when.system, when.prompt, when.tool_result, when.model):
                re.compile(pattern or "")
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, re.error) as error:
        raise ServerError("load_failed", f"The script {path!r} cannot be used: {error}.") from error
    return script


def last_text(request: GenerationRequest) -> str:
    """The text of the last message of the user; of a raw prompt, the prompt."""
    if request.messages is None:
        return request.prompt if isinstance(request.prompt, str) else ""
    for message in reversed(request.messages):
        if message.role == "user":
            return "".join(part.text for part in message.parts if isinstance(part, Text))
    return ""


def tool_results(request: GenerationRequest) -> list[str]:
    """The results that the conversation ends with."""
    results: list[str] = []
    for message in reversed(request.messages or ()):
        found = [_text_of(part) for part in message.parts if isinstance(part, ToolResult)]
        if not found:
            break
        results = found + results
    return results


def turn(request: GenerationRequest) -> int:
    """1 for the first answer of a conversation."""
    spoken = (Text, ToolCall, Reasoning)
    messages = request.messages or ()
    said = sum(m.role == "assistant" and any(isinstance(p, spoken) for p in m.parts) for m in messages)
    return said + 1


def _text_of(result: ToolResult) -> str:
    return "".join(part.text for part in result.parts if isinstance(part, Text))


def holds(when: When, request: GenerationRequest) -> bool:
    def found(pattern: str | None, text: str) -> bool:
        return pattern is None or re.search(pattern, text) is not None

    system = [m for m in request.messages or () if m.role in ("system", "developer")]
    system_text = "\n".join(p.text for m in system for p in m.parts if isinstance(p, Text))
    prompt = request.prompt if isinstance(request.prompt, str) else ""
    results = tool_results(request)
    return (
        (when.user is None or request.messages is not None)
        and found(when.user, last_text(request))
        and found(when.system, system_text)
        and (when.prompt is None or request.prompt is not None)
        and found(when.prompt, prompt)
        and (when.tool_result is None or any(found(when.tool_result, result) for result in results))
        and when.turn in (None, turn(request))
        and set(when.tools) <= {tool.name for tool in request.tools}
        and found(when.model, request.model)
    )
