"""What one choice of a scripted answer will be: its tokens, where it is cut, and why it ends."""

import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from pippin.core.conversation import Tool, ToolChoice
from pippin.core.errors import ServerError
from pippin.core.events import FinishReason, Token, TopToken
from pippin.core.requests import Choice, GenerationRequest, Grammar, JsonObject, JsonSchema, Regex
from pippin.engines.scripted import tokenizer
from pippin.engines.scripted.script import Rule, ScriptedCall, last_text
from pippin.output.reasoning_formats import ReasoningFormat
from pippin.output.tool_format import ToolFormat

WRITTEN: Final = ("json_tools", "mistral")
DEEPEST: Final = 8  # levels of a made-up value


def write_calls(format: ToolFormat, calls: Sequence[ScriptedCall]) -> str:
    """Raw text of the calls. Raises `ServerError` for a format that is not written here."""
    objects = [json.dumps({"name": call.name, "arguments": call.arguments}) for call in calls]
    if not objects:
        return ""
    if format.name == "mistral":
        return f"[TOOL_CALLS][{', '.join(objects)}]"
    if format.name == "json_tools":
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in objects)
    raise ServerError(
        "unsupported",
        f"The scripted model writes calls as {' or '.join(WRITTEN)}; write the markup of {format.name!r} in `say`.",
    )


def required_call(tools: Sequence[Tool], choice: ToolChoice, most: int) -> ScriptedCall | None:
    """A call that satisfies `required`, where the script says nothing: the first tool, the plainest arguments.

    The arguments take about `most` characters at most.
    """
    if choice.mode != "required":
        return None
    for tool in tools:
        if not choice.names or tool.name in choice.names:
            value = Example(most).value(tool.parameters or {})
            return ScriptedCall(tool.name, value if isinstance(value, dict) else {})
    return None


class Example:
    """Builds the plainest value that fits a schema, as far as it is made of common words.

    A value whose JSON would be longer than `most` characters is cut short soon after them, so that it takes no more
    memory than the longest answer.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    def value(self, schema: Any, depth: int = DEEPEST) -> Any:
        if not isinstance(schema, dict) or depth == 0:
            return self._counted(None)
        if "const" in schema:
            return self._counted(schema["const"])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self._counted(schema["enum"][0])
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(schema.get(word), list) and schema[word]:
                return self.value(schema[word][0], depth - 1)
        match schema.get("type"):
            case "object" | None:
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._counted("x" * min(max(4, _number(schema, "minLength")), max(4, self._left)))
            case "integer" | "number":
                return self._counted(schema.get("minimum", 0))
            case "boolean":
                return self._counted(True)
            case [first, *_]:
                return self.value(schema | {"type": first}, depth - 1)
            case _:
                return self._counted(None)

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        self._left -= len("{}")
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        names = schema.get("required")
        built = {}
        for name in names if isinstance(names, list) else properties:
            if self._left <= 0:
                break
            if isinstance(name, str):
                self._left -= len(name) + len('"": ')
                built[name] = self.value(properties.get(name, {}), depth - 1)
        return built

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        self._left -= len("[]")
        built: list[Any] = []
        while len(built) < _number(schema, "minItems") and self._left > 0:
            self._left -= len(", ")
            built.append(self.value(schema.get("items", {}), depth - 1))
        return built

    def _counted(self, value: Any) -> Any:
        self._left -= len(json.dumps(value))
        return value


def _number(schema: dict[str, Any], word: str) -> int:
    """A count that a schema asks for; 0 where it is no count."""
    given = schema.get(word, 0)
    return int(given) if isinstance(given, int | float) and given == given and given < float("inf") else 0


MOST_TOKENS = 1_000_000


@dataclass(frozen=True)
class Performance:
    """The tokens' texts, unless a stop string ends them before. The first `thought` of them are reasoning with its
    markers."""

    texts: tuple[str, ...]
    reason: FinishReason
    thought: int


def perform(
    request: GenerationRequest,
    rule: Rule,
    limit: int,
    choice: int,
    tool_format: ToolFormat,
    reasoning_format: ReasoningFormat,
) -> Performance:
    """Decide one choice's answer; `limit` is its most tokens."""
    thought = _thought(request, rule, reasoning_format)
    # More than the longest answer holds, so that what is cut there ends for its length, as a real model's answer does.
    most = (limit + 1) * tokenizer.LONGEST
    tokens = thought + _said(request, rule, choice, tool_format, most)
    if request.ignore_eos and tokens:  # no end: the answer begins again
        tokens = (tokens * (limit // len(tokens) + 1))[: min(limit, MOST_TOKENS) + 1]
    reason: FinishReason = "stop" if len(tokens) <= limit else "length"
    tokens = tokens[:limit]
    if ends := request.stop_token_ids:
        kept = list(takewhile(lambda token: tokenizer.token_id(token) not in ends, tokens))
        tokens, reason = kept, reason if len(kept) == len(tokens) else "stop"
    return Performance(tuple(tokens), reason, len(thought))


def scripted_token(text: str, alternatives: int) -> Token:
    """A token with made-up log probabilities: those of a text are always the same."""
    logprob = -(zlib.crc32(text.encode()) % 1000 + 1) / 1000
    top = [TopToken(tokenizer.token_id(text), text.encode(), logprob)] if alternatives else []
    for rank in range(1, alternatives):
        other = f"~{rank}"
        top.append(TopToken(tokenizer.token_id(other), other.encode(), logprob - rank))
    return Token(tokenizer.token_id(text), text.encode(), logprob, tuple(top))


def _thought(request: GenerationRequest, rule: Rule, format: ReasoningFormat) -> list[str]:
    if rule.think is None or request.thinking.enabled is False:
        return []
    thought = tokenizer.pieces(rule.think)
    if request.thinking.budget is not None:
        thought = thought[: request.thinking.budget]
    return [format.start, *thought, format.end]


def _said(request: GenerationRequest, rule: Rule, choice: int, format: ToolFormat, most: int) -> list[str]:
    """The tokens of the answer; a value that is made up for a schema takes about `most` characters at most."""
    offered = {tool.name for tool in request.tools} if request.tool_choice.mode != "none" else set()
    calls = [call for call in rule.calls if call.name in offered]
    if not calls and (made_up := required_call(request.tools, request.tool_choice, most)):
        calls = [made_up]
    markup = tokenizer.pieces(write_calls(format, calls))
    if rule.any_of:
        return tokenizer.pieces(_chosen(request, rule.any_of, choice)) + markup
    if rule.say is None:
        return markup if rule.calls or calls else tokenizer.pieces(_unscripted(request, most))
    return (tokenizer.pieces(rule.say) if isinstance(rule.say, str) else list(rule.say)) + markup


def _chosen(request: GenerationRequest, texts: tuple[str, ...], choice: int) -> str:
    sampling = request.sampling
    if sampling.temperature == 0:
        return texts[0]
    source = random.Random() if sampling.seed is None else random.Random(f"{sampling.seed}/{choice}")
    return source.choice(texts)


def _unscripted(request: GenerationRequest, most: int) -> str:
    """What answers where no rule does: a value of the wanted form, or the echo."""
    match request.output_format:
        case JsonSchema(schema):
            return json.dumps(Example(most).value(schema))
        case JsonObject():
            return json.dumps({"echo": last_text(request)})
        case Choice(options):
            return options[0]
        case Regex() | Grammar():
            raise ServerError(
                "unsupported",
                "The scripted model makes no text up for a grammar: give it a rule.",
                "response_format",
            )
        case _:
            return last_text(request)
