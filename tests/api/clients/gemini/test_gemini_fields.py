"""Every field of the request types of `google-genai` is honoured, accepted for a reason, or refused by its name."""

import inspect
from collections.abc import Collection
from typing import Any, Final, get_args

import msgspec
import pytest

from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.gemini import content, dialect, tools
from pippin.api.dialects.shared.fields import Contract, names_of
from pippin.api.routes import gemini
from pippin.core.errors import ServerError

BODY: Final = dialect.dialect.contract
OF_THE_CLIENT: Final = {
    "httpOptions",
    "shouldReturnHttpResponse",
    "automaticFunctionCalling",
    "automaticContinuation",
}
"""What the client keeps to itself."""


def known(contract: Contract[Any]) -> set[str]:
    return set(names_of(contract.body)) | set(contract.accepted) | set(contract.refused)


def of(struct: type[msgspec.Struct]) -> Collection[str]:
    return names_of(struct)


READ_BY: Final[dict[str, Collection[str]]] = {
    "GenerateContentConfig": {*of(dialect.GenerationConfig), *known(BODY), *OF_THE_CLIENT},
    "GenerationConfig": of(dialect.GenerationConfig),
    "ResponseFormat": of(dialect.ResponseFormat),
    "TextResponseFormat": of(dialect.TextFormat),
    "ThinkingConfig": of(dialect.ThinkingConfig),
    "CountTokensConfig": {*of(dialect.CountBody), *OF_THE_CLIENT},
    "Content": of(content.Content),
    "Part": of(content.ContentPart),
    "Blob": of(content.MediaData),
    "FileData": of(content.MediaData),
    "FunctionCall": of(content.FunctionCall),
    "FunctionResponse": of(content.FunctionResponse),
    "FunctionResponsePart": of(content.MediaPart),
    "FunctionResponseBlob": of(content.MediaData),
    "FunctionResponseFileData": of(content.MediaData),
    "VideoMetadata": of(content.VideoMetadata),
    "PartMediaResolution": of(content.PartResolution),
    "Tool": of(tools.GivenTool),
    "FunctionDeclaration": of(tools.FunctionDeclaration),
    "ToolConfig": of(tools.ToolConfig),
    "FunctionCallingConfig": of(tools.CallingConfig),
    "EmbedContentConfig": {*known(gemini.ONE), *OF_THE_CLIENT},
    "ListModelsConfig": {"pageSize", "pageToken", "filter", "queryBase", *OF_THE_CLIENT},
}
READ_AS_THEY_COME: Final = {
    *("Schema", "CodeExecutionResult", "ExecutableCode", "Transcription"),
    *("ToolCall", "ToolResponse", "SpeechMetadata", "SafetySetting", "RetrievalConfig", "PartialArg"),
    *("DocumentMetadata", "SpreadsheetMetadata", "AudioMetadata", "TranslationConfig"),
    *("AudioResponseFormat", "ImageResponseFormat", "VideoResponseFormat"),
    *("SpeechConfig", "ImageConfig", "ModelArmorConfig", "GenerationOutputConfig", "ModelSelectionConfig"),
    *("AudioTranscriptionConfig", "GenerationConfigRoutingConfig", "AutomaticFunctionCallingConfig"),
    *("HttpOptions", "File", "ComputerUse", "FileSearch", "GoogleSearch", "GoogleMaps", "ToolCodeExecution"),
    *("EnterpriseWebSearch", "GoogleSearchRetrieval", "ToolParallelAiSearch", "ToolExaAiSearch"),
    *("UrlContext", "McpServer", "Retrieval"),
}
"""Objects whose field is accepted, refused or left out as a whole, or which are read key by key (schemas, code)."""


@pytest.mark.parametrize("name", READ_BY)
def test_every_field_of_a_type_is_known(name: str) -> None:
    from google.genai import types  # it takes a second to import

    given = {field.alias or key for key, field in getattr(types, name).model_fields.items()}
    assert given <= set(READ_BY[name])


@pytest.mark.parametrize("name", READ_BY)
def test_every_type_inside_it_is_looked_at(name: str) -> None:
    from google.genai import types

    inner = {
        kind.__name__
        for field in getattr(types, name).model_fields.values()
        for kind in kinds_in(field.annotation)
    }
    assert inner <= READ_BY.keys() | READ_AS_THEY_COME


def kinds_in(annotation: Any) -> set[type]:
    from pydantic import BaseModel

    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return {annotation}
    return {kind for each in get_args(annotation) for kind in kinds_in(each)}


def test_every_key_of_a_schema_has_its_meaning() -> None:
    from google.genai import types

    given: dict[str, Any] = {
        "anyOf": [{"type": "STRING"}],
        "additionalProperties": {"type": "NUMBER"},
        "defs": {"a": {"type": "BOOLEAN"}},
        "default": "x",
        "description": "x",
        "enum": ["x"],
        "example": "x",
        "format": "date",
        "items": {"type": "INTEGER", "format": "int64"},
        "maxItems": "3",
        "maxLength": "3",
        "maxProperties": "3",
        "maximum": 3,
        "minItems": "1",
        "minLength": "1",
        "minProperties": "1",
        "minimum": 1,
        "nullable": True,
        "pattern": "x",
        "properties": {"b": {"type": "OBJECT"}, "a": {"type": "ARRAY"}},
        "propertyOrdering": ["a", "b"],
        "ref": "#/defs/a",
        "required": ["a"],
        "title": "x",
        "type": "STRING",
    }
    assert {field.alias or key for key, field in types.Schema.model_fields.items()} <= given.keys()
    whole = tools.json_schema_of(given, "schema")
    assert whole["$defs"] == {"a": {"type": "boolean"}}
    [made, null] = whole["anyOf"]
    assert null == {"type": "null"}
    assert list(made["properties"]) == ["a", "b"]
    assert made == {
        "anyOf": [{"type": "string"}],
        "additionalProperties": {"type": "number"},
        "items": {"type": "integer"},
        "properties": {"a": {"type": "array"}, "b": {"type": "object"}},
        "$ref": "#/$defs/a",
        "type": "string",
        **{f"max{of}": 3 for of in ("Items", "Length", "Properties")},
        **{f"min{of}": 1 for of in ("Items", "Length", "Properties")},
        **{key: given[key] for key in ("default", "description", "enum", "format", "maximum", "minimum")},
        **{key: given[key] for key in ("pattern", "required", "title")},
    }


CLIP: Final = {"fileData": {"fileUri": "https://example.org/a.mp4"}}
PART: Final = "contents[0].parts[0]"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (
            {"tools": [{"functionDeclarations": [{"name": "look", "behavior": "NON_BLOCKING"}]}]},
            "tools[0].functionDeclarations[0].behavior",
        ),
        (
            {"contents": [{"parts": [{"text": "x", "mediaProcessing": "AGENTIC"}]}]},
            f"{PART}.mediaProcessing",
        ),
        ({"contents": [{"parts": [CLIP | {"videoMetadata": {"fps": 0}}]}]}, f"{PART}.videoMetadata.fps"),
        ({"systemInstruction": "Be brief.", "contents": [{"role": "user"}]}, "contents"),
    ],
)
def test_what_works_otherwise_here_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    body = {"contents": [{"parts": [{"text": "x"}]}], **given}
    with pytest.raises(ServerError) as refused:
        dialect.dialect.decode(msgspec.json.encode(body), DecodeContext())
    assert refused.value.report.param == named
