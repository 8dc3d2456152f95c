"""No field is taken and forgotten: each changes the request or the shape of its answer, or is refused by its name."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from msgspec import inspect

from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.chat import dialect as openai_chat
from pippin.api.dialects.chat.dialect import ChatDialect
from pippin.api.dialects.completions import dialect as openai_completions
from pippin.api.dialects.completions.dialect import CompletionsDialect
from pippin.api.dialects.gemini import dialect as google_gemini
from pippin.api.dialects.gemini.dialect import GeminiDialect
from pippin.api.dialects.messages import dialect as anthropic_messages
from pippin.api.dialects.messages.dialect import MessagesDialect
from pippin.api.dialects.responses import dialect as openai_responses
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.core.errors import ServerError

AnyDialect = ChatDialect | CompletionsDialect | ResponsesDialect | MessagesDialect | GeminiDialect
PICTURE: Final = "data:image/png;base64,iVBORw0KGgo="
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL: Final = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
CHAT_PARTS: Final = [
    {"type": "text", "text": "Hi"},
    {"type": "image_url", "image_url": {"url": PICTURE}},
    {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
]
DIALECTS: Final[dict[str, tuple[AnyDialect, dict[str, Any]]]] = {
    "chat": (
        openai_chat.dialect,
        {
            "model": "m",
            "messages": [{"role": "user", "content": CHAT_PARTS}, {"role": "assistant", "content": "So"}],
            "tools": [{"type": "function", "function": TOOL}],
            "logprobs": True,
        },
    ),
    "completions": (openai_completions.dialect, {"model": "m", "prompt": "Hi"}),
    "responses": (
        openai_responses.dialect,
        {
            "model": "m",
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_image", "image_url": PICTURE},
                        {"type": "input_video", "video_url": "https://example.com/a.mp4"},
                    ],
                },
                {"role": "assistant", "content": "So"},
            ],
            "tools": [{"type": "function", **TOOL}],
        },
    ),
    "messages": (
        anthropic_messages.dialect,
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Hi"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                        },
                    ],
                }
            ],
            "tools": [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}],
        },
    ),
    "gemini": (
        google_gemini.dialect,
        {
            "contents": [
                {"parts": [{"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}]},
                {"parts": [{"text": "Hi"}]},
            ],
            "tools": [{"functionDeclarations": [TOOL]}],
        },
    ),
}
ENGINE: Final[dict[str, Any]] = {
    "adapter_path": "a",
    "adapters": "a",
    "add_generation_prompt": False,
    "cache_salt": "s",
    "chat_template_kwargs": {"a": 1},
    "context_management": [{"type": "compaction"}],
    "context_management.compact_threshold": [{"type": "compaction", "compact_threshold": 9}],
    "continue_final_message": True,
    "documents": [{"text": "x"}],
    "ebnf": 'start: "a"',
    "enable_thinking": True,
    "frequency_context_size": 9,
    "frequency_penalty": 0.5,
    "grammar": 'start: "a"',
    "guided_choice": ["a"],
    "guided_grammar": 'start: "a"',
    "guided_json": SCHEMA,
    "guided_regex": "a",
    "ignore_eos": True,
    "json_spacing": "compact",
    "include_reasoning": False,
    "include_stop_str_in_output": True,
    "json_schema": SCHEMA,
    "keep_alive": "5m",
    "logit_bias": {"1": 2},
    "loop_guard": "warn",
    "max_pixels": 99,
    "min_p": 0.5,
    "min_pixels": 9,
    "min_tokens": 3,
    "parse_tool_calls": False,
    "presence_context_size": 9,
    "presence_penalty": 0.5,
    "priority": 3,
    "reasoning": "high",
    "reasoning.effort": {"effort": "high"},
    "reasoning.enabled": {"enabled": True},
    "reasoning.exclude": {"exclude": True},
    "reasoning.generate_summary": {"generate_summary": "auto"},
    "reasoning.max_tokens": {"max_tokens": 9},
    "reasoning.mode": {"mode": "pro"},
    "reasoning.summary": {"summary": "auto"},
    "reasoning_effort": "high",
    "reasoning_format": "hidden",
    "regex": "a",
    "repeat_last_n": 9,
    "repeat_penalty": 1.5,
    "repetition_context_size": 9,
    "repetition_penalty": 1.5,
    "resize_shape": [9, 9],
    "seed": 3,
    "stop_token_ids": [3],
    "structured_outputs": {"regex": "a"},
    "structured_outputs.choice": {"choice": ["a"]},
    "structured_outputs.disable_additional_properties": {
        "json": SCHEMA,
        "disable_additional_properties": True,
    },
    "structured_outputs.disable_any_whitespace": {"json": SCHEMA, "disable_any_whitespace": True},
    "structured_outputs.grammar": {"grammar": 'start: "a"'},
    "structured_outputs.json": {"json": SCHEMA},
    "structured_outputs.json_object": {"json_object": True},
    "structured_outputs.regex": {"regex": "a"},
    "structured_outputs.structural_tag": {"json": SCHEMA, "structural_tag": {"a": 1}},
    "structured_outputs.whitespace_pattern": {"json": SCHEMA, "whitespace_pattern": " "},
    "temperature": 0.5,
    "thinking_budget": 9,
    "thinking_end_token": "</x>",
    "thinking_start_token": "<x>",
    "thinking_token_budget": 9,
    "timeout": 9,
    "tool_parser": "hermes",
    "top_k": 9,
    "top_n_sigma": 1.5,
    "p_less": True,
    "top_p": 0.5,
    "truncation": "auto",
    "typical_p": 0.5,
    "video_fps": 2,
    "video_max_frames": 9,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
}
OPENAI: Final[dict[str, Any]] = {
    "max_tokens": 9,
    "model": "other",
    "n": 2,
    "return_progress": True,
    "skip_special_tokens": False,
    "stop": "x",
    "stream": True,
    "stream_options.continuous_usage_stats": {"continuous_usage_stats": True},
    "stream_options.include_usage": {"include_usage": True},
    "stream_options": {"include_usage": True},
    "tool_argument_recovery": "repair",
    "response_format": {"type": "json_object"},
}
OWN: Final[dict[str, dict[str, Any]]] = {
    "chat": OPENAI
    | {
        "logprobs": False,
        "web_search_options": {"search_context_size": "low"},
        "web_search_options.search_context_size": {"search_context_size": "low"},
        **{
            f"web_search_options.user_location{path}": {"user_location": {"approximate": {"city": "Rome"}}}
            for path in (
                *("", ".type", ".approximate", ".approximate.type", ".approximate.city"),
                *(".approximate.region", ".approximate.country", ".approximate.timezone"),
            )
        },
        "max_completion_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "modalities": ["text", "audio"],
        "parallel_tool_calls": False,
        "prediction": {"type": "content", "content": "x"},
        "prediction.content.text": {"type": "content", "content": [{"type": "text", "text": "y"}]},
        "prediction.content": {"type": "content", "content": [{"type": "text", "text": "x"}]},
        "tool_choice": "required",
        "tools": [],
        "top_logprobs": 3,
        "verbosity": "low",
    },
    "completions": OPENAI | {"best_of": 3, "echo": True, "logprobs": 3, "prompt": "x", "suffix": "x"},
    "responses": {
        "background": True,
        "conversation": "conv_1",
        "conversation.id": {"id": "conv_1"},
        "include": ["reasoning.encrypted_content"],
        "input": "x",
        "instructions": "x",
        "max_output_tokens": 9,
        "max_tool_calls": 3,
        "metadata": {"a": "b"},
        "model": "other",
        "n": 2,
        "parallel_tool_calls": False,
        "previous_response_id": "resp_1",
        "prompt_cache_key": "x",
        "response_format": {"type": "json_object"},
        "safety_identifier": "x",
        "service_tier": "flex",
        "stop": "x",
        "store": False,
        "stream": True,
        "text": {"format": {"type": "json_object"}},
        "text.format": {"format": {"type": "json_object"}},
        "text.verbosity": {"verbosity": "low"},
        "tool_choice": "required",
        "tools": [],
        "top_logprobs": 3,
        "user": "x",
    },
    "messages": {
        "cache_control": {"type": "ephemeral"},
        "compaction": {"type": "summarize"},
        "compaction.instructions": {"type": "summarize", "instructions": "Be short."},
        "compaction.type": {"type": "summarize"},
        "max_tokens": 10,
        "messages": [{"role": "user", "content": "x"}],
        "model": "other",
        "n": 2,
        "output_config": {"effort": "high"},
        "output_config.effort": {"effort": "high"},
        "output_config.format": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "output_format": {"type": "json_schema", "schema": SCHEMA},
        "output_config.format.schema": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "output_format.schema": {"type": "json_schema", "schema": SCHEMA},
        "response_format": {"type": "json_object"},
        "stop_sequences": ["x"],
        "stream": True,
        "system": "x",
        "thinking": {"type": "adaptive"},
        "thinking.budget_tokens": {"type": "adaptive", "budget_tokens": 9},
        "thinking.display": {"type": "enabled", "display": "omitted"},
        "thinking.type": {"type": "adaptive"},
        "tool_choice": {"type": "any"},
        "tool_choice.disable_parallel_tool_use": {"type": "auto", "disable_parallel_tool_use": True},
        "tool_choice.name": {"type": "tool", "name": "look"},
        "tool_choice.type": {"type": "any"},
        "tools": [],
    },
    "gemini": {
        "contents": [{"parts": [{"text": "x"}]}],
        "generationConfig": {"topK": 9},
        "model": "models/other",
        "systemInstruction": "x",
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "toolConfig.functionCallingConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "toolConfig.functionCallingConfig.mode": {"functionCallingConfig": {"mode": "NONE"}},
        "toolConfig.functionCallingConfig.allowedFunctionNames": {
            "functionCallingConfig": {"allowedFunctionNames": ["look"]}
        },
        "toolConfig.functionCallingConfig.streamFunctionCallArguments": {
            "functionCallingConfig": {"streamFunctionCallArguments": True}
        },
        "tools": [],
        **{
            f"generationConfig.{name}": {name.partition(".")[0]: value}
            for name, value in {
                "audioTimestamp": True,
                "audioTranscriptionConfig": {"diarization": True},
                "candidateCount": 2,
                "enableAffectiveDialog": True,
                "frequencyPenalty": 0.5,
                "imageConfig": {"aspectRatio": "1:1"},
                "maxOutputTokens": 9,
                "mediaResolution": "MEDIA_RESOLUTION_LOW",
                "modelSelectionConfig": {"featureSelectionPreference": "BALANCED"},
                "presencePenalty": 0.5,
                "responseFormat": [{"text": {"schema": SCHEMA}}],
                "responseFormat.text": [{"text": {"mimeType": "APPLICATION_JSON"}}],
                "responseFormat.text.mimeType": [{"text": {"mimeType": "application/json"}}],
                "responseFormat.text.schema": [{"text": {"schema": SCHEMA}}],
                "responseFormat.audio": [{"audio": {"bitRate": 9}}],
                "responseFormat.image": [{"image": {"aspectRatio": "1:1"}}],
                "responseFormat.video": [{"video": {"duration": "9s"}}],
                "responseJsonSchema": SCHEMA,
                "_responseJsonSchema": SCHEMA,
                "responseLogprobs": True,
                "responseMimeType": "application/json",
                "responseModalities": ["IMAGE"],
                "responseSchema": SCHEMA,
                "routingConfig": {"autoMode": {}},
                "seed": 3,
                "speechConfig": {"languageCode": "de"},
                "stopSequences": ["x"],
                "temperature": 0.5,
                "thinkingConfig": {"thinkingBudget": 9},
                "topK": 9.0,
                "topP": 0.5,
                "translationConfig": {"targetLanguageCode": "de"},
            }.items()
        },
        "generationConfig.logprobs": {"responseLogprobs": True, "logprobs": 3},
        "generationConfig.thinkingConfig.includeThoughts": {"thinkingConfig": {"includeThoughts": True}},
        "generationConfig.thinkingConfig.thinkingBudget": {"thinkingConfig": {"thinkingBudget": 0}},
        "generationConfig.thinkingConfig.thinkingLevel": {"thinkingConfig": {"thinkingLevel": "LOW"}},
    },
}
WITHOUT_EFFECT: Final[dict[str, str]] = {
    "stream_options.include_obfuscation": "chunks are never padded, and need not say so",
    "reasoning.context": "the chat template decides, and a warning says so",
    "thinking.block_binding": "thinking blocks are read wherever they stand",
    "output_config.task_budget": "`max_tokens` is what bounds an answer here",
    "structured_outputs.disable_fallback": "there is nothing to fall back to",
    "context_management.type": "it has one value",
    "messages context_management": "docs/api.md lists it as accepted",
    "toolConfig.retrievalConfig": "it is of tools that run at Google's, which are left out",
    "toolConfig.includeServerSideToolInvocations": "it is of those tools too",
    "generationConfig.enableEnhancedCivicAnswers": "it is of Google's own filters",
    "completions parse_tool_calls": "false is what happens",
    "completions add_generation_prompt": "false is what happens",
}
"""What may be given and changes nothing, and why that is no lie."""
READ_ELSEWHERE: Final = (
    "messages",
    "tools",
    "tool_choice",
    "response_format",
    "input",
    "system",
    "text.format",
    "contents",
    "systemInstruction",
)
"""Conversations and tools have tests of their own; formats too."""


def paths_of(kind: inspect.Type, prefix: str = "") -> Iterator[str]:
    """Fields of a body, and of the structs in them."""
    match kind:
        case inspect.StructType(fields=fields):
            for item in fields:
                path = f"{prefix}{item.encode_name}"
                yield path
                if path not in READ_ELSEWHERE:
                    yield from paths_of(item.type, f"{path}.")
        case inspect.UnionType(types=types):
            for each in types:
                yield from paths_of(each, prefix)
        case inspect.Metadata(type=inner):
            yield from paths_of(inner, prefix)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from paths_of(item, prefix)
        case _:
            pass


def paths_with_effect(name: str) -> list[str]:
    dialect, _ = DIALECTS[name]
    paths = dict.fromkeys(paths_of(inspect.type_info(dialect.contract.body)))
    return [path for path in paths if not {path, f"{name} {path}"} & set(WITHOUT_EFFECT)]


def outcome(dialect: AnyDialect, body: dict[str, Any]) -> Any:
    """What comes of a body, or which field it is refused for."""
    try:
        found = dialect.decode(json.dumps(body).encode(), DecodeContext())
    except ServerError as error:
        return error.report.param
    return found.requests, found.shape, found.stream


@pytest.mark.parametrize("name", DIALECTS)
def test_a_field_is_honoured_or_refused_by_name(name: str) -> None:
    dialect, base = DIALECTS[name]
    plain = outcome(dialect, base)
    assert plain == outcome(dialect, base)
    for path in paths_with_effect(name):
        value = (ENGINE | OWN[name]).get(path)
        assert value is not None, f"{path} is a new field: give it a value that is not its default"
        field, _, inner = path.partition(".")
        changed = outcome(dialect, base | {field: value})
        if isinstance(changed, str):
            assert changed.startswith(field), path
            continue
        assert plain != changed, path
        if isinstance(value, dict) and inner in value and len(value) > 1:
            others = {key: value[key] for key in value if key != inner}
            assert outcome(dialect, base | {field: others}) != changed, path


def test_what_has_no_effect_is_still_there() -> None:
    paths = {
        path
        for dialect, _ in DIALECTS.values()
        for path in paths_of(inspect.type_info(dialect.contract.body))
    }
    assert {key.rpartition(" ")[2] for key in WITHOUT_EFFECT} <= paths
