"""Building grammars of calls in llguidance's dialect of Lark."""

import json
import re
from collections.abc import Callable
from typing import Any

from pippin.core.conversation import Tool
from pippin.output.arguments import types_of
from pippin.output.tool_format import SpecialToken

ANY = "/(?s:.*)/"
_ONE_LINE = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}}
_NAMEABLE = re.compile(r"<[^<>\s]+>")
_DEFINITIONS = ("$defs", "definitions")


def string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def parameters_of(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments, which are always an object: without any, an empty one."""
    schema = dict(tool.parameters or {"properties": {}, "additionalProperties": False})
    schema.setdefault("type", "object")
    return schema


class Grammar:
    """Rules under construction. Expressions are Lark source; a special token stands as its id."""

    def __init__(self, special: SpecialToken) -> None:
        self._special = special
        self._rules: list[str] = []

    def is_special(self, marker: str) -> bool:
        return self.mark(marker) != string(marker)

    def mark(self, marker: str) -> str:
        """A marker: a special token where the tokenizer has one for it, else its text."""
        token = self._special(marker)
        if token is None or token is False:
            return string(marker)
        if token is True:  # without its id, a token can be named only if its name looks like one
            return marker if _NAMEABLE.fullmatch(marker) else string(marker)
        return f"<[{token}]>"

    def rule(self, body: str, attributes: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def json(self, schema: Any) -> str:
        """Any JSON that a schema admits, on one line: models lose themselves in free white space."""
        return self.rule(
            "%json "
            + json.dumps({"allOf": [schema]} if isinstance(schema, bool) else {**schema, **_ONE_LINE})
        )

    def text_until(self, marker: str, pattern: str = ANY) -> str:
        """Free text up to and with a marker, which it can't hold."""
        if pattern != ANY:
            name = f"T{len(self._rules)}"
            self._rules.append(f"{name}: {pattern} & ~({ANY} {string(marker)} {ANY})")
            pattern = name
        if self.is_special(marker):
            return f"{self.rule(pattern)} {self.mark(marker)}"
        return self.rule(pattern, f"[suffix={string(marker)}]")

    def either(self, options: list[str]) -> str:
        return self.rule(" | ".join(options))

    def source(self, opener: str, rest: str, *, required: bool, repeat: bool, separator: str = "") -> str:
        """The whole: calls alone if one is required, else text in which calls may stand."""
        again = f" {separator}" if separator else ""
        if required:
            block = self.rule(f"{self.mark(opener)} {rest}")
            start = block + (f" ({again} {block})*" if repeat else "")
        else:
            block = self.rule(f"{self.text_until(opener)} {rest}")
            start = f"({block})*" if repeat else f"({block})?"
            start += f" {self.rule(ANY)}"
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def lines(self, start: str) -> str:
        """The rules with a start of one's own."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def json_call(grammar: Grammar, tool: Tool, *, name: str = "name", arguments: str = "arguments") -> str:
    """`{"name": "f", "arguments": {...}}`; the schema is a root of its own, so that its references hold."""
    head = "{" + f"{string(name)}: {string(tool.name)}, {string(arguments)}: "
    return grammar.rule(f'{string(head)} {grammar.json(parameters_of(tool))} "}}"')


def elements(
    grammar: Grammar,
    tool: Tool,
    opening: Callable[[str, bool], str],
    close: str,
    *,
    lines: bool = False,
    closing: Callable[[str], str] = lambda _: "",
) -> str:
    """One element for each argument, in the schema's order; those that are not required may be left out.

    `closing` is what follows `close`, where the end of an element names its key.
    """
    schema = parameters_of(tool)
    required = schema.get("required") or ()
    parts = []
    for key, inner in (schema.get("properties") or {}).items():
        plain = is_text(inner, schema)
        around = '"\\n" ' if lines else ""
        value = (
            text_value(grammar, inner, close, after=around)
            if plain
            else f"{grammar.json(with_definitions(inner, schema))} {around}{grammar.mark(close)}"
        )
        rule = grammar.rule(f"{opening(key, plain)} {around}{value} {closing(key)} {around}")
        parts.append(rule if key in required else f"{rule}?")
    return " ".join(parts)


def is_text(schema: Any, root: dict[str, Any]) -> bool:
    """Whether a value is written as plain text, without quotes."""
    types = types_of(schema, root)
    return "string" in types or (not types and isinstance(schema, dict) and not schema)


def text_value(grammar: Grammar, schema: Any, close: str, *, after: str = "") -> str:
    """Plain text that a schema of strings admits, up to and with `close`; `after` stands between them."""
    options = [value for value in _options(schema) if isinstance(value, str)]
    if options:
        return f"({' | '.join(map(string, options))}) {after}{grammar.mark(close)}"
    pattern = text_pattern(schema)
    return grammar.text_until(close, pattern if pattern == ANY else f"({pattern} {after})")


def _options(schema: Any) -> list[Any]:
    if not isinstance(schema, dict):
        return []
    return [schema["const"]] if "const" in schema else list(schema.get("enum") or ())


def text_pattern(schema: Any) -> str:
    """A regular expression for the strings that a schema admits, as far as one can be made."""
    if not isinstance(schema, dict):
        return ANY
    if isinstance(pattern := schema.get("pattern"), str):
        head = "" if pattern.startswith("^") else "(?s:.*)"
        tail = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
        bare = pattern.removeprefix("^").removesuffix("$" if not tail else "\0")
        return "/" + head + "(" + re.sub(r"(?<!\\)/", r"\\/", bare) + ")" + tail + "/"
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return f"/(?s:.{{{least},{most}}})/" if least or most != "" else ANY


def with_definitions(schema: Any, root: dict[str, Any]) -> Any:
    """A property's schema with the definitions that it may refer to."""
    if not isinstance(schema, dict):
        return schema
    return {**schema, **{key: root[key] for key in _DEFINITIONS if key in root}}


def sequence(grammar: Grammar, parts: list[tuple[str, bool]], separator: str) -> str:
    """Expressions in order, each with whether it is required, a separator between those there are."""
    begun, fresh = grammar.rule('""'), grammar.rule('""')
    for part, required in reversed(parts):
        more = f"{string(separator)} {part}"
        fresh = grammar.rule(f"{part} {begun}" if required else f"{part} {begun} | {fresh}")
        begun = grammar.rule(f"{more} {begun}" if required else f"({more})? {begun}")
    return fresh


def python_arguments(grammar: Grammar, tool: Tool) -> str:
    """`key=value, ...` in Python's notation, as far as JSON's differs in what stands at the top."""
    schema = parameters_of(tool)
    parts = []
    for key, inner in (schema.get("properties") or {}).items():
        if types_of(inner, schema) == {"boolean"}:
            value = '("True" | "False")'
        else:
            value = grammar.json(with_definitions(inner, schema))
        parts.append((grammar.rule(f"{string(key + '=')} {value}"), key in (schema.get("required") or ())))
    return sequence(grammar, parts, ", ")
