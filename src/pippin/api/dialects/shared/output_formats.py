"""The forms in which clients ask for structured output, in OpenAI's, vLLM's and llama.cpp's words."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.shared.fields import check_depth, convert, invalid, unsupported
from pippin.api.dialects.shared.sampling_fields import SamplingFields
from pippin.core.decoding import from_json
from pippin.core.requests import Choice, Grammar, JsonObject, JsonSchema, OutputFormat, Regex

MAX_PATTERN = 65_536
Pattern = Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN)]
GrammarText = Annotated[str, Meta(min_length=1, max_length=1_048_576)]
Options = Annotated[tuple[str, ...], Meta(min_length=1, max_length=4096)]
Schema = dict[str, Any] | bool | str
"""A JSON schema, or its JSON text."""


class TextFormat(Struct, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    schema: dict[str, Any] | None = None  # llama.cpp and others allow one here


class NamedSchema(Struct, kw_only=True):
    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=64)],
        Meta(description="Accepted: no model is told of it."),
    ]
    description: Annotated[str | None, Meta(description="Accepted: no model is told of it.")] = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """Chat Completions: the schema stands in an object of its own."""

    json_schema: NamedSchema


class RegexFormat(Struct, tag_field="type", tag="regex"):
    pattern: Pattern


class GrammarFormat(Struct, tag_field="type", tag="grammar"):
    grammar: GrammarText


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat


class StructuredOutputs(Struct, kw_only=True):
    """vLLM's `structured_outputs` object; exactly one of its kinds is set."""

    json: Schema | None = None
    regex: Pattern | None = None
    choice: Options | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None
    disable_fallback: Annotated[
        bool | None, Meta(description="Accepted: there is nothing to fall back to.")
    ] = None


class StructureFields(SamplingFields, kw_only=True, omit_defaults=True):
    """Sampling fields and those of structured output; read with `output_format_of`."""

    structured_outputs: Annotated[
        StructuredOutputs | None, Meta(description="A JSON schema, regex, choice or grammar to follow.")
    ] = None
    guided_json: Annotated[Schema | None, Meta(description="JSON schema to follow.")] = None
    guided_regex: Annotated[Pattern | None, Meta(description="Regular expression to follow.")] = None
    guided_choice: Annotated[Options | None, Meta(description="Texts of which one is answered.")] = None
    guided_grammar: Annotated[GrammarText | None, Meta(description="Lark or GBNF grammar to follow.")] = None
    grammar: Annotated[GrammarText | None, Meta(description="Lark or GBNF grammar to follow.")] = None
    ebnf: Annotated[GrammarText | None, Meta(description="Lark or GBNF grammar to follow.")] = None
    regex: Annotated[Pattern | None, Meta(description="Regular expression to follow.")] = None
    json_schema: Annotated[Schema | None, Meta(description="JSON schema to follow (llama.cpp).")] = None


def output_format_of(fields: StructureFields, response_format: ResponseFormat | None) -> OutputFormat | None:
    """The one output format that was asked for. Raises `ServerError` if two were."""
    asked: list[tuple[str, OutputFormat]] = []
    if response_format is not None and (wanted := format_of(response_format)) is not None:
        asked.append(("response_format", wanted))
    if fields.structured_outputs is not None:
        asked += _of_structured_outputs(fields.structured_outputs)
    for name, schema in (("guided_json", fields.guided_json), ("json_schema", fields.json_schema)):
        if schema is not None:
            asked.append((name, schema_format(schema, name)))
    for name, pattern in (("guided_regex", fields.guided_regex), ("regex", fields.regex)):
        if pattern is not None:
            asked.append((name, Regex(pattern)))
    if fields.guided_choice is not None:
        asked.append(("guided_choice", Choice(fields.guided_choice)))
    sources = (("guided_grammar", fields.guided_grammar), ("grammar", fields.grammar), ("ebnf", fields.ebnf))
    asked += [(name, grammar_of(source)) for name, source in sources if source is not None]
    if len(asked) > 1:
        raise invalid(asked[1][0], f"can't be combined with `{asked[0][0]}`: ask for one output format.")
    return asked[0][1] if asked else None


def format_of(response_format: ResponseFormat, param: str = "response_format") -> OutputFormat | None:
    match response_format:
        case TextFormat():
            return None
        case JsonObjectFormat(schema):
            return JsonObject() if schema is None else schema_format(schema, f"{param}.schema")
        case JsonSchemaFormat(named):
            wanted = True if named.schema is None else named.schema
            return schema_format(wanted, f"{param}.json_schema.schema", named.name, named.strict is not False)
        case RegexFormat(pattern):
            return Regex(pattern)
        case GrammarFormat(source):
            return grammar_of(source)


def schema_format(schema: Schema, param: str, name: str | None = None, strict: bool = True) -> JsonSchema:
    if isinstance(schema, str):
        from_text = convert_schema_text(schema, param)
        return JsonSchema(from_text, name, strict)
    check_depth(schema, param)
    return JsonSchema(schema, name, strict)


def convert_schema_text(text: str, param: str) -> dict[str, Any] | bool:
    try:
        value = from_json(text)
    except (msgspec.DecodeError, RecursionError):
        raise invalid(param, "must be a JSON schema, or the JSON text of one.") from None
    check_depth(value, param)
    return convert(value, dict[str, Any] | bool, param)  # type: ignore[arg-type]


def grammar_of(source: str) -> Grammar:
    """GBNF rules are written `name ::= ...`, Lark's `name: ...`."""
    return Grammar("gbnf" if "::=" in source else "lark", source)


def _of_structured_outputs(given: StructuredOutputs) -> list[tuple[str, OutputFormat]]:
    name = "structured_outputs"
    if given.structural_tag is not None:
        raise unsupported(f"{name}.structural_tag", "use `tools`, `regex` or `grammar` instead.")
    if given.whitespace_pattern is not None:
        raise unsupported(f"{name}.whitespace_pattern", "leave it out; whitespace is kept compact.")
    if given.disable_additional_properties:
        raise unsupported(
            f"{name}.disable_additional_properties", 'write "additionalProperties": false in the schema.'
        )
    if given.disable_any_whitespace:
        raise unsupported(
            f"{name}.disable_any_whitespace",
            "leave it out; a space or a line end may stand between tokens of JSON.",
        )
    asked: list[tuple[str, OutputFormat]] = []
    if given.json is not None:
        asked.append((f"{name}.json", schema_format(given.json, f"{name}.json")))
    if given.regex is not None:
        asked.append((f"{name}.regex", Regex(given.regex)))
    if given.choice is not None:
        asked.append((f"{name}.choice", Choice(given.choice)))
    if given.grammar is not None:
        asked.append((f"{name}.grammar", grammar_of(given.grammar)))
    if given.json_object:
        asked.append((f"{name}.json_object", JsonObject()))
    if not asked:
        raise invalid(name, "must set one of `json`, `regex`, `choice`, `grammar` and `json_object`.")
    return asked
