"""Builds grammars for tool calls in llguidance's dialect of Lark."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from pippin.core.conversation import Tool
from pippin.core.errors import ServerError
from pippin.output.notations.parameters import Tags
from pippin.output.schemas import resolve, types_of

SpecialToken = Callable[[str], "int | None"]
"""The id of a string that is one special token of the model's tokenizer; None for other strings."""

ANY = "/(?s:.*)/"
_PLAIN = {"type", "description", "title", "default", "items", "properties"}
"""Keywords that do not constrain null: beside them, a nullable type really admits null."""
MAYBE_LINE = '"\\n"?'
_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_AS_TEMPLATES = {**_ONE_LINE, "item_separator": ", ", "key_separator": ": "}
"""The spacing in which chat templates write calls, by `tojson`."""
_DEFINITIONS = ("$defs", "definitions")
_ABOUT_ARGUMENTS = (
    *("anyOf", "oneOf", "allOf", "not", "if", "$ref", "$dynamicRef", "enum", "const", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies", "minProperties", "maxProperties"),
)
"""Keywords that are about all arguments together."""
_ABOUT_TEXTS = ("format", "allOf", "not", "if", "$dynamicRef")
"""Keywords that are enforced in JSON, but not in strings without quotes."""
_DEEPEST = 16  # references and options that are followed one after the other


def string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def parameters_of(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments, which are always an object; an empty one if the tool has no parameters."""
    schema = dict(tool.parameters or {"properties": {}, "additionalProperties": False})
    schema.setdefault("type", "object")
    return schema


def _without(pattern: str, markers: list[str]) -> str:
    return f"{pattern} & ~({ANY} ({' | '.join(map(string, markers))}) {ANY})"


def _leaving(markers: tuple[str, ...]) -> str:
    """The shortest texts that do not begin a marker, and begin with no white space."""
    following: dict[str, str] = {"": " \\t\\r\\n"}
    for marker in markers:
        for place, character in enumerate(marker.replace("/", "\0")):
            following[marker[:place]] = following.get(marker[:place], "") + character.replace("\0", "\\/")
    begun = {text: "".join(f"[{each}]" for each in text).replace("/", "\\/") for text in following}
    return f"/{'|'.join(f'{begun[text]}[^{after}]' for text, after in following.items())}/"


class Grammar:
    """Rules under construction. Expressions are Lark source; special tokens are written by id.

    `tools` may be called: at least one of them if `required`, and several at a time if `parallel`.
    """

    def __init__(
        self,
        special: SpecialToken,
        openers: tuple[str, ...] = (),
        leading: tuple[str, ...] = (),
        tools: tuple[Tool, ...] = (),
        *,
        required: bool = False,
        parallel: bool = False,
    ) -> None:
        """Free text must not contain any of `openers`, nor begin with any of `leading`, which are single characters:
        after them, the grammar only admits a call."""
        self.tools, self.required, self.parallel = tools, required, parallel
        self._special = special
        self._rules: dict[tuple[str, str], str] = {}  # names, by kind and definition: each rule once
        self._with_calls: dict[Tags, str] = {}  # texts that may hold calls, which are the same in all tools
        self._openers = [opener for opener in openers if not self.is_special(opener)]
        firsts = "".join(f"\\{first}" for first in leading)
        self._text = f"/\\s*([^\\s{firsts}](?s:.*))?/" if leading else ANY

    def is_special(self, marker: str) -> bool:
        return self._special(marker) is not None

    def mark(self, marker: str) -> str:
        """A marker: its special token if the tokenizer has one, else its text."""
        token = self._special(marker)
        return string(marker) if token is None else f"<[{token}]>"

    def rule(self, body: str, attributes: str = "") -> str:
        return self._named("r", f"{attributes}: {body}")

    def json(self, schema: Any) -> str:
        """Any JSON that a schema admits, on one line: models can get stuck in free whitespace. Where a call is forced,
        its spacing is, too, so that fewer tokens have to be chosen."""
        written = dict(schema) if isinstance(schema, dict) else {"allOf": [schema]}
        written["x-guidance"] = _AS_TEMPLATES if self.required else _ONE_LINE
        return self.rule("%json " + json.dumps(written))

    def terminal(self, body: str) -> str:
        return self._named("T", f": {body}")

    def _named(self, kind: str, definition: str) -> str:
        return self._rules.setdefault((kind, definition), f"{kind}{len(self._rules)}")

    def text(self) -> str:
        """Free text in which no call begins. Text can't spell a special token."""
        if not self._openers:
            return self.rule(self._text)
        return self.rule(self.terminal(_without(self._text, self._openers)))

    def text_until(self, marker: str) -> str:
        """Free text in which no call begins, up to and including a marker, which the text can't contain."""
        if self.is_special(marker):
            return f"{self.text()} {self.mark(marker)}"
        if self._text == ANY and self._openers in ([], [marker]):
            return self.value_until(marker)
        text = self.terminal(_without(self._text, [*self._openers, marker]))
        return self.rule(text, f"[suffix={string(marker)}]")

    def value_until(self, marker: str, pattern: str = ANY) -> str:
        """A text up to and including a marker, which the text can't contain."""
        if self.is_special(marker):
            return f"{self.rule(pattern if pattern == ANY else self.terminal(pattern))} {self.mark(marker)}"
        text = pattern if pattern == ANY else self.terminal(_without(pattern, [marker]))
        return self.rule(text, f"[suffix={string(marker)}]")

    def either(self, options: list[str]) -> str:
        return self.rule(" | ".join(options))

    def calls(self, write: Callable[[Tool], str]) -> str:
        """A call of one of the tools; `write` returns the expression of a tool's call."""
        return self.either([write(tool) for tool in self.tools])

    def several(self, call: str, between: str = "") -> str:
        """One call, or several if they may be parallel."""
        if not self.parallel:
            return call
        return f"{call} ({between} {call})*" if between else f"{call}+"

    def source(self, opener: str, rest: str, *, repeat: bool = False, separator: str = "") -> str:
        """The whole grammar: only calls if one is required, else text that may contain calls.

        With `repeat`, each of parallel calls has an opener.
        """
        again = f" {separator}" if separator else ""
        repeat = repeat and self.parallel
        if self.required:
            block = self.rule(f"{self.mark(opener)} {rest}")
            start = block + (f" ({again} {block})*" if repeat else "")
            if repeat and separator:  # a separator must not force another call
                start += f" ({separator})?"
        else:
            block = self.rule(f"{self.text_until(opener)} {rest}")
            start = f"({block})*" if repeat else f"({block})?"
            start += f" {self.text()}"
        return self.lines(start)

    def bare(self, calls: str) -> str:
        """The whole grammar of calls without an opener: only they if one is required, else they or text."""
        return self.lines(calls if self.required else f"{calls} | {self.text()}?")

    def lines(self, start: str) -> str:
        """The rules with a given start."""
        rules = (name + definition for (_, definition), name in self._rules.items())
        return "\n".join([f"start: {start}", *rules]) + "\n"

    def json_call(
        self, tool: Tool, *, name: str = "name", arguments: str = "arguments", first: str = "", last: str = ""
    ) -> str:
        """`{"name": "f", "arguments": {...}}`. The schema is a separate root, so that its references resolve. `first`
        and `last` are expressions for other members at the beginning and the end."""
        head = f"{string(name)}: {string(tool.name)}, {string(arguments)}: "
        return self.rule(f'"{{" {first} {string(head)} {self.json(parameters_of(tool))} {last} "}}"')

    def json_calls(self, around: tuple[str, str, str] = ("[", ", ", "]"), **members: str) -> str:
        """An array of JSON calls with these `members`; `around` is the text before, between and after them."""
        begin, between, end = map(string, around)
        call = self.calls(lambda tool: self.json_call(tool, **members))
        return f"{begin} {self.several(call, between)} {end}"

    def named_calls(self, before: Callable[[str], str], after: str = "") -> str:
        """Calls that are a name followed by JSON; `before` returns the expression that contains a tool's name."""
        return self.calls(lambda tool: f"{before(tool.name)} {self.json(parameters_of(tool))} {after}")

    def tagged_call(self, tool: Tool, tags: Tags, head: Callable[[str, bool], str]) -> str:
        """One element for each argument, in the schema's order, and the end of the call; arguments that are not
        required may be left out.

        `head` is what the opening tag of an argument says, given its key and whether its value is plain text.
        """
        schema = separate_arguments(tool)
        members = members_of(schema)
        opens, over = self._after_line(tags.opens), self._after_line(tags.ends[0])
        heads = [string(head(key, plain) + tags.head_end) for key, *_ in members for plain in (True, False)]
        text = (
            self.value_until(tags.close) if self.is_special(tags.close) else self._text_of(tags, opens, heads)
        )
        lead = f"{MAYBE_LINE} {self.mark(tags.value_opens)}" if tags.value_opens else ""
        line = '"\\n"' if tags.lines else ""
        done, rest, optional = over, "", True
        for key, inner, required in reversed(members):
            plain = is_text(inner, schema)
            value = f"{self.json_value(inner, schema)} {line} {self.mark(tags.close)}"
            value = self.text_value(inner, schema, tags.close, after=line, free=text) if plain else value
            options = [f"{self._headed(head(key, plain), tags)} {lead} {line} {value} {done}"]
            if "null" in types_of(inner, schema) and plain and head(key, True) != head(key, False):
                options.append(
                    f'{self._headed(head(key, False), tags)} "null" {self.mark(tags.close)} {done}'
                )
            rest = self.either([*options, *([rest] if rest and not required else [])])
            optional = optional and not required
            done = self.either([f"{opens} {rest}", *([over] if optional else [])])
        return done

    def _headed(self, head: str, tags: Tags) -> str:
        if self.is_special(tags.head_end):
            return f"{string(head)} {self.mark(tags.head_end)}"
        return string(head + tags.head_end)

    def _after_line(self, marker: str) -> str:
        """A marker behind up to two line breaks."""
        if self.is_special(marker):
            return f"{MAYBE_LINE} {MAYBE_LINE} {self.mark(marker)}"
        return self.rule(self.terminal(f"/\\n{{0,2}}/ {string(marker)}"))

    def _text_of(self, tags: Tags, opens: str, heads: list[str]) -> str:
        """A text up to and including the end of its element, which the text may contain where its reader can tell.

        The end counts only before the next element or the end of the call. Behind an element that begins inside of the
        text, another one may follow, unless its head is one of `heads`. A whole call belongs to the text.
        """
        close, blank = string(tags.close), "/[ \\t\\r\\n]*/"
        again = f"{self.rule(self.terminal(f'{blank} {close}'))}*"
        end = f"{self.rule(ANY, f'[suffix={close}]')} {again}"
        holding = self.terminal(f"{ANY} {string(tags.opens)} /[^\\n]*/ {string(tags.head_end)} {ANY}")
        inner_end = f"{self.rule(holding, f'[suffix={close}]')} {again}"
        head = f"/[^>\\n]*/ {string(tags.head_end)} & ~({' | '.join(heads)})"
        further = self.either([opens, self.rule(self.terminal(f"{blank} {string(tags.opens)}"))])
        more = f"{further} {self.rule(self.terminal(head))}"
        on = self.rule(self.terminal(f"{blank} {_leaving((tags.opens, tags.close, *tags.ends))}"))
        block = self.either([end, f"{inner_end} {more} ({end} {more})* {end}"])
        if tags not in self._with_calls:
            self._with_calls[tags] = self._text_with_calls(tags, further, on, again)
        return f"({self._with_calls[tags]} | ({block} {on})* {block})"

    def _text_with_calls(self, tags: Tags, further: str, on: str, again: str) -> str:
        """A text with whole calls of its format in it, up to and including the end of its element. Other beginnings of
        calls are not in it, since its reader tells the end of the outer call by their number.

        Behind the end of an element, `further` begins the next one, `on` a text, and `again` are more ends.
        """
        begin, blank = f"({' | '.join(map(string, tags.begins))})", "/[ \\t\\r\\n]*/"
        suffix = f"[suffix={string(tags.close)}]"
        # Texts that hold at least so many beginnings of calls. All texts end at the end of an element, since the lexer
        # takes the first end that any of them has.
        texts = [f"{f'{ANY} {begin} ' * count}{ANY}" for count in range(4)]
        none, once, twice = (
            self.rule(self.terminal(f"({least}) & ~({more})"), suffix) for least, more in pairwise(texts)
        )
        next_text = f"({further} {self.rule(self.terminal(f'/[^>]*/ {string(tags.head_end)}'))} | {on})"
        end = self.rule(self.terminal(f"{blank} ({' | '.join(map(string, tags.ends))})"))
        call = f"r{len(self._rules) + 1}"  # the rule after the next, which refers to it
        rest = self.rule(f"({next_text} ({none} | {call} {none}))* {end}")
        call = self.rule(f"{once} {rest} | {twice} {rest} {none} {rest}")
        behind = self.rule(self.terminal(f"{blank} {_leaving((tags.opens, tags.close))}"))
        closed = self.rule(self.terminal(f"{blank} {string(tags.close)}"))
        return self.rule(
            f"({none} {again} {on} | {call} {behind})* ({none} {again} | {call} {closed} {again})"
        )

    def json_value(self, schema: Any, root: dict[str, Any]) -> str:
        """JSON, or Python's `True`, `False` and `None`: templates write both."""
        types = types_of(schema, root)
        words = [f'"{word}"' for word in ("True", "False") if types == {"boolean"}]
        words += ['"None"'] if "null" in types else []
        return f"({' | '.join([self.json(with_definitions(schema, root)), *words])})"

    def text_value(
        self, schema: Any, root: dict[str, Any], close: str, *, after: str = "", free: str = ""
    ) -> str:
        """Plain text that a string schema admits, up to and including `close`; `after` comes between them. `free` is
        the expression of any text, where it may contain `close`."""
        options = [text_pattern(option) for option in _texts(schema, root)]
        if ANY in options:
            return free or self.value_until(close)
        if all(option.startswith('"') for option in options):
            return f"({' | '.join(options)}) {after}{self.mark(close)}"
        return self.value_until(close, f"(({' | '.join(options)}) {after})")

    def arguments(
        self, tool: Tool, write: Callable[[str, Any, dict[str, Any]], str], *, texts: bool = True
    ) -> list[tuple[str, bool]]:
        """The expression of each argument, which `write` returns for its key, its schema and the schema of all, and
        whether it is required; `texts` as for `separate_arguments`."""
        schema = separate_arguments(tool, texts=texts)
        return [(write(key, inner, schema), required) for key, inner, required in members_of(schema)]

    def in_order(self, parts: list[tuple[str, bool]]) -> str:
        """Expressions in order, each with whether it is required."""
        return " ".join(part + ("" if required else "?") for part, required in parts)

    def sequence(self, parts: list[tuple[str, bool]], separator: str) -> str:
        """Expressions in order, each with whether it is required, and a separator between those that are present."""
        begun, fresh = self.rule('""'), self.rule('""')
        for part, required in reversed(parts):
            more = f"{string(separator)} {part}"
            fresh = self.rule(f"{part} {begun}" if required else f"{part} {begun} | {fresh}")
            begun = self.rule(f"{more} {begun}" if required else f"({more})? {begun}")
        return fresh

    def python_call(self, tool: Tool, end: str) -> str:
        """`f(key=value, ...)` in Python's notation, `end` included. Booleans and None are Python's at the top level,
        and JSON's inside."""

        def write(key: str, inner: Any, schema: dict[str, Any]) -> str:
            if types_of(inner, schema) == {"boolean"}:
                value = '("True" | "False")'
            else:
                value = self.json(with_definitions(inner, schema))
            if isinstance(inner, dict) and inner.keys() <= _PLAIN and "null" in types_of(inner, schema):
                value = f'({value} | "None")'
            return self.rule(f"{string(key + '=')} {value}")

        parts = self.arguments(tool, write, texts=False)
        return f"{string(tool.name + '(')} {self.sequence(parts, ', ')} {end}"


def separate_arguments(tool: Tool, *, texts: bool = True) -> dict[str, Any]:
    """The schema of arguments that are written one by one; if `texts`, strings are written without quotes.

    Raises `ServerError` for a part of a strict tool's schema that a grammar of such arguments leaves out.
    """
    schema = parameters_of(tool)
    if tool.strict and (path := next(_left_out(schema, texts=texts), None)):
        raise ServerError(
            "invalid_request",
            f"The parameters of the tool '{tool.name}' can't be enforced at '{path}': this model writes each argument "
            "by itself. Change them, or leave out `strict`: then what a grammar lacks is left out.",
            "tools",
        )
    return schema


def _left_out(schema: dict[str, Any], *, texts: bool) -> Iterator[str]:
    """The paths of what grammars of separate arguments leave out of a schema."""
    yield from (keyword for keyword in _ABOUT_ARGUMENTS if keyword in schema)
    properties = schema.get("properties") or {}
    if set(schema.get("required") or ()) - set(properties):
        yield "required"
    for key, inner in properties.items() if texts else ():
        for option in _texts(inner, schema) if is_text(inner, schema) else ():
            yield from (f"properties.{key}.{keyword}" for keyword in _ABOUT_TEXTS if keyword in option)


def members_of(schema: dict[str, Any]) -> list[tuple[str, Any, bool]]:
    """The key and the schema of each property that an object may have, and whether it is required."""
    required = schema.get("required") or ()
    members = [(key, inner, key in required) for key, inner in (schema.get("properties") or {}).items()]
    return [member for member in members if member[1] is not False or member[2]]


def is_text(schema: Any, root: dict[str, Any]) -> bool:
    """Whether a value is written as plain text, without quotes."""
    types = types_of(schema, root)
    return "string" in types or (not types and isinstance(schema, dict) and not schema)


def _texts(schema: Any, root: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """The schemas of the strings that a schema admits: its own, or those of its options."""
    schema = schema if isinstance(schema, dict) else {}
    options = [option for word in ("anyOf", "oneOf") for option in schema.get(word) or ()]
    if "$ref" in schema:
        options = [resolve(schema["$ref"], root)]
    elif len(schema.get("allOf") or ()) == 1:
        options = schema["allOf"]
    if not options or depth > _DEEPEST:
        yield schema
    for option in options:
        if option in (True, {}) or "string" in types_of(option, root):
            yield from _texts(option, root, depth + 1)


def text_pattern(schema: dict[str, Any]) -> str:
    """The strings that a schema admits, as far as they can be expressed: literals, or a regular expression."""
    values = [schema["const"]] if "const" in schema else list(schema.get("enum") or ())
    if values:
        return " | ".join(string(value) for value in values if isinstance(value, str)) or ANY
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    sized = f"/(?s:.{{{least},{most}}})/" if least or most != "" else ANY
    if not isinstance(pattern := schema.get("pattern"), str):
        return sized
    head = "" if pattern.startswith("^") else "(?s:.*)"
    tail = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    bare = pattern.removeprefix("^").removesuffix("$" if not tail else "\0")
    found = "/" + head + "(" + re.sub(r"(?<!\\)/", r"\\/", bare) + ")" + tail + "/"
    return found if sized == ANY else f"({found} & {sized})"


def with_definitions(schema: Any, root: dict[str, Any]) -> Any:
    """A property's schema with the definitions that it may refer to."""
    if not isinstance(schema, dict):
        return schema
    return {**schema, **{key: root[key] for key in _DEFINITIONS if key in root}}
