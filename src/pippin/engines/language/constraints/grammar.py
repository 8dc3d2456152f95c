"""Grammars of structured output: compiled beside the step loop, then matched token by token."""

import json
import re
from functools import lru_cache
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from pippin.core.conversation import Tool
from pippin.core.decoding import from_json
from pippin.core.errors import ServerError
from pippin.core.requests import Choice, Grammar, JsonObject, JsonSchema, JsonSpacing, OutputFormat, Regex
from pippin.engines.language.constraints import schema as schema_walk
from pippin.engines.language.constraints import tokens as grammar_tokens
from pippin.engines.language.constraints.rewriting import rewritten
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.recent import Recent
from pippin.output.reasoning_formats import ReasoningFormat
from pippin.output.schemas import types_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_SOURCE = 1 << 20  # bytes of a grammar's source
MOST_TOOLS = 512  # whose enforceable form is kept
MOST_FORCED = 1 << 16  # bytes that an answer must begin with: others wait while they become tokens
MOST_FAULTS = 64  # keywords that are left out of a schema that is not strict
CACHE_BYTES = 32 << 20
CACHE_OVERHEAD = 64 << 10  # bytes that a compiled grammar counts for beside four times its source

WHITESPACE = r"(\x20|\n[\x20\t]{0,40})?"
"""The white space between the tokens of JSON: none, a space, or a line end with its indentation. If any were allowed, a
small model could fill its whole answer with it."""

SPACING: Final[dict[JsonSpacing, dict[str, Any]]] = {
    "any": {"whitespace_pattern": WHITESPACE},
    "one-line": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "compact": {"whitespace_flexible": False},
}
"""llguidance's options for each spacing."""

_UNIMPLEMENTED = re.compile(r'Unimplemented keys: \["([^"]+)"')
_BAD_VALUE = (
    (re.compile(r"Unknown format: (.*)"), "format"),
    (re.compile(r"Invalid type: (.*)"), "type"),
    (re.compile(r"(?:Pointer|Resource) '#?([^']*)'"), "$ref"),
)


class CompiledGrammar(Struct, frozen=True, eq=False):
    """A grammar in its start state; each sequence gets a copy, which only one thread may use at a time."""

    start: "LLMatcher"
    words: int  # of 32 bits, in a mask
    size: int  # bytes that it counts for in the cache
    special: frozenset[int]  # tokens that its free text never matches

    def matcher(self) -> "LLMatcher":
        return self.start.deep_copy()

    def fill(self, matcher: "LLMatcher", row: NDArray[np.int32]) -> None:
        """Write the mask of the tokens that a matcher allows into `row`, one bit each."""
        own = row if row.size == self.words else np.zeros(self.words, np.int32)
        matcher.unsafe_compute_mask_ptr(own.ctypes.data, own.nbytes)
        if own is not row:
            row[:] = 0
            row[: min(self.words, row.size)] = own[: row.size]


class GrammarCompiler:
    """Compiles grammars for one tokenizer, and keeps the last used. Several threads may use it at once."""

    def __init__(self, tokenizer: Tokenizer, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()
        self._tokens: LLTokenizer | None = None
        self._special = frozenset(grammar_tokens.special_tokens(tokenizer))
        size = attrgetter("size")
        self._cache = Recent[tuple[str, bool], CompiledGrammar](most_size=cache_bytes, size=size)
        # Agents offer the same in each request.
        self._enforceable = lru_cache(MOST_TOOLS)(self._made_enforceable)

    def compile(
        self,
        wanted: OutputFormat | None,
        calls: str | None = None,
        *,
        reasoning: ReasoningFormat | None = None,
        thinks: bool = True,
        spacing: JsonSpacing = "any",
        param: str = "response_format",
    ) -> CompiledGrammar:
        """The grammar of an answer of the format `wanted`, or of tool calls (`calls` is Lark source), or of either.

        `reasoning` is the format in which the model reasons before it answers: the grammar has the marks of that format
        around the answer, and white space ahead of it if the model `thinks` this time. Raises `ServerError` for what
        can't be honoured, naming `param`, the keyword and its path.
        """
        answer = None if wanted is None else source_of(wanted, param, spacing)
        source = self._source(answer, calls, reasoning, thinks)
        if len(source) > MOST_SOURCE:
            raise ServerError("invalid_request", f"The grammar is larger than {MOST_SOURCE} bytes.", param)
        strict = not isinstance(wanted, JsonSchema) or wanted.strict
        if (known := self._cache.get((source, strict))) is not None:
            return known
        matcher = _start(self.open_tokens(), source)
        if not matcher.is_error():
            _begin(matcher, param)
            words, size = -(-self._tokenizer.size // 32), len(source) * 4 + CACHE_OVERHEAD
            compiled = CompiledGrammar(matcher, words, size, self._special)
        else:
            held = wanted if not strict and isinstance(wanted, JsonSchema) else None
            given = None if held is None else rewritten(held.schema)
            if held is None or (relaxed := self.relaxed(given)) == given:
                raise self._refusal(matcher.get_error(), wanted, param)
            held = structs.replace(held, schema=relaxed)
            compiled = self.compile(
                held, calls, reasoning=reasoning, thinks=thinks, spacing=spacing, param=param
            )
        self._cache.put((source, strict), compiled)
        return compiled

    def _source(
        self,
        answer: dict[str, Any] | None,
        calls: str | None,
        reasoning: ReasoningFormat | None,
        thinks: bool,
    ) -> str:
        parts = {} if answer is None else {"answer": answer}
        if calls is not None:
            parts["calls"] = {"lark_grammar": calls}
        starts = parts
        if reasoning is not None:
            build = {"answer": reasoning.around, "calls": reasoning.ahead_of_calls}
            starts = {
                f"whole_{name}": {"lark_grammar": build[name](self.special_id, f"@{name}", thinks=thinks)}
                for name in parts
            }
        named = [{"name": name, **part} for name, part in {**starts, **parts}.items()]
        either = " | ".join(f"@{name}" for name in starts)
        whole = [{"lark_grammar": f"start: {either}"}, *named] if len(named) > 1 else [*parts.values()]
        return json.dumps({"grammars": whole}, ensure_ascii=False)

    def relaxed(self, schema: Any) -> Any:
        """The schema without what the compiler can't enforce: for schemas that are not strict."""
        for _ in range(MOST_FAULTS):
            error = self._fault(schema)
            if not error:
                return schema
            keyword, path, _ = self._place(error, schema)
            if keyword is not None and (keyword == "oneOf" or _UNIMPLEMENTED.search(error)):
                schema = schema_walk.without_keyword(schema, keyword)
            elif path is not None:
                schema = schema_walk.without(schema, path)
            else:
                break
        return {"type": "object"} if types_of(schema, schema) == {"object"} else {}

    def enforceable(self, tool: Tool) -> Tool:
        """The tool with parameters that a grammar can enforce. Raises `ServerError` if a strict tool's can't be."""
        return self._enforceable(msgspec.json.encode(tool))

    def _made_enforceable(self, written: bytes) -> Tool:
        tool = from_json(written, Tool)
        given = {"type": "object", **(tool.parameters or {})}
        schema = rewritten(given)
        # Of an object's grammar, an argument that can't be written is left out; many formats write each by itself.
        error = self._fault(schema) or self._fault(_with_all(schema))
        if not error:
            return tool if schema == given else structs.replace(tool, parameters=schema)
        if not tool.strict:
            relaxed = self.relaxed(schema)
            each = self.relaxed(_with_all(relaxed))
            return structs.replace(tool, parameters={**each, "required": relaxed.get("required", [])})
        where, _ = self._where(error, schema)
        raise ServerError(
            "invalid_request",
            f"The parameters of the tool '{tool.name}' can't be enforced{where}. Change them, or leave out `strict`: "
            "then what a grammar lacks is left out.",
            "tools",
        )

    def special_id(self, text: str) -> int | None:
        """The id of the special token `text`, which grammars name in llguidance's special-token syntax, or None."""
        token = self._tokenizer.single(text)
        return token if token in self._special else None

    def _refusal(self, error: str, wanted: OutputFormat | None, param: str) -> ServerError:
        """The refusal of a grammar: the compiler's message, and for a JSON schema the keyword and its path."""
        if not isinstance(wanted, JsonSchema):
            return ServerError("invalid_request", f"The grammar can't be compiled: {_one_line(error)}", param)
        where, path = self._where(error, wanted.schema)
        way_out = ", or set strict to false to have what is not supported left out" if wanted.strict else ""
        return ServerError(
            "invalid_request",
            f"The JSON schema can't be honoured{where}. Change it{way_out}.",
            f"{param}.{path}" if path else param,
        )

    def _where(self, error: str, schema: Any) -> tuple[str, str | None]:
        """What a refusal says of the place and the reason of a compiler's message, and the path of the place."""
        keyword, path, error = self._place(error, schema)
        place = (f" at '{path}'" if path else "") + (f" (keyword '{keyword}')" if keyword else "")
        return f"{place}: {_one_line(error)}", path

    def _place(self, error: str, schema: Any) -> tuple[str | None, str | None, str]:
        """The keyword that a compiler's message is about, its path in the schema, and the message for that place."""
        keyword, path = _keyword_and_path(error, schema)
        if path is None:
            path, error = schema_walk.innermost_failing(schema, self._fault) or (None, error)
            keyword = None
        return keyword, path, error

    def _fault(self, schema: Any) -> str:
        source = json.dumps({"grammars": [{"json_schema": _with_options(schema)}]})
        return str(_start(self.open_tokens(), source).get_error())

    def open_tokens(self) -> "LLTokenizer":
        """llguidance's tokenizer, made when first asked for."""
        with self._lock:
            if self._tokens is None:
                self._tokens = grammar_tokens.open_tokens(self._tokenizer)
            return self._tokens


def _begin(matcher: "LLMatcher", param: str) -> None:
    """Find out what may come first, which copies of the matcher then know, for whom others would wait. Raises
    `ServerError` if nothing may, or too much must."""
    matcher.compute_bitmask()
    error = str(matcher.get_error())
    if error or len(matcher.compute_ff_bytes()) > MOST_FORCED:
        why = "nothing satisfies it" if error.startswith("NoExtension") else _one_line(error)
        why = why or f"it begins with a text of more than {MOST_FORCED} bytes"
        raise ServerError("invalid_request", f"No answer can have this form: {why}.", param)


def forced_by(matcher: "LLMatcher") -> list[int]:
    """The tokens that come next whatever is chosen, as the tokenizer writes them. Empty where there is a choice, be it
    only whether the next token ends later than what is certain."""
    tokens = matcher.compute_ff_tokens()
    return tokens[: matcher.validate_tokens(tokens)] if tokens else []


def source_of(wanted: OutputFormat, param: str, spacing: JsonSpacing = "any") -> dict[str, Any]:
    """A format as llguidance takes it. Raises `ServerError` naming `param`."""
    match wanted:
        case JsonObject():
            return {"json_schema": _with_options({"type": "object"}, spacing)}
        case JsonSchema(schema):
            try:
                schema_walk.check_size(schema)
            except schema_walk.TooLarge as error:
                raise ServerError(
                    "invalid_request", f"The JSON schema is too large: {error}.", param
                ) from None
            return {"json_schema": _with_options(rewritten(schema), spacing)}
        case Regex(pattern):
            return {"lark_grammar": "start: TEXT\nTEXT: " + _lark_regex(pattern)}
        case Choice(options):
            if not options:
                raise ServerError("invalid_request", "A choice needs at least one option.", param)
            # Of rules, llguidance follows at most 2,000 side by side.
            return {"lark_grammar": "start: TEXT\nTEXT: " + " | ".join(map(json.dumps, options))}
        case Grammar(syntax, source):
            return {"lark_grammar": source if syntax == "lark" else _from_gbnf(source, param)}


def _with_all(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with all properties that it may have."""
    properties = schema.get("properties") or {}
    return {**schema, "required": [name for name, inner in properties.items() if inner is not False]}


def _start(tokens: "LLTokenizer", source: str) -> "LLMatcher":
    # Slow to import, and many models serve without a grammar.
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(tokens, source, log_level=0, limits=LLParserLimits(verbose_errors=False))


def _with_options(schema: dict[str, Any] | bool, spacing: JsonSpacing = "any") -> dict[str, Any]:
    """The schema with llguidance's options."""
    held: dict[str, Any] = {"allOf": [{}]} if schema is True else {"not": {}} if schema is False else schema
    return {**held, "x-guidance": SPACING[spacing]}


def _lark_regex(pattern: str) -> str:
    """A regular expression as a Lark terminal, which matches the whole answer: anchors at its ends are dropped."""
    escaped = pattern.removeprefix("^")
    if escaped.endswith("$") and not escaped.endswith("\\$"):
        escaped = escaped[:-1]
    return "/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", escaped).replace("\n", "\\n") + "/"


def _from_gbnf(source: str, param: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(source))
    except Exception as error:
        # The converter has no common error of its own.
        raise ServerError("invalid_request", f"The GBNF grammar can't be read: {error}.", param) from error


def _one_line(error: str) -> str:
    return " ".join(error.replace("<non-verbose/>", "").split())[:500]


def _keyword_and_path(error: str, schema: Any) -> tuple[str | None, str | None]:
    """The keyword that the compiler's message is about and its path in the schema, if they can be found."""
    missing = _UNIMPLEMENTED.search(error)
    if missing:
        return missing[1], schema_walk.path_of(schema, missing[1])
    for pattern, keyword in _BAD_VALUE:
        found = pattern.search(error)
        if found:
            value = "#" + found[1] if keyword == "$ref" and found[1].startswith("/") else found[1]
            return keyword, schema_walk.path_of(schema, keyword, value)
    if "oneOf" in error:
        return "oneOf", schema_walk.path_of(schema, "oneOf")
    if "regex parse error" in error:
        return "pattern", _bad_pattern(error, schema)
    return None, None


def _bad_pattern(error: str, schema: Any) -> str | None:
    for path, node in schema_walk.nodes(schema):
        written = {"pattern": node.get("pattern")}
        written |= {f"patternProperties.{name}": name for name in node.get("patternProperties") or ()}
        for keyword, pattern in written.items():
            if isinstance(pattern, str) and pattern in error:
                return f"{path}.{keyword}".removeprefix(".")
    return None
