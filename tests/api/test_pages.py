"""docs/api.md says of every field of every dialect what becomes of it."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripts.docs.api_page import api_page, contracts_of_dialects, descriptions, fields_of

from pippin.api.dialects.shared.body_types import objects_of
from pippin.api.dialects.shared.fields import Contract
from pippin.api.dialects.shared.openai import OpenAIFields

CONTRACTS = contracts_of_dialects()
PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_page_is_as_the_contracts_are() -> None:
    assert PAGE.read_text("utf-8") == api_page(), "write it anew with `make docs`"


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_field_has_one_fate(name: str) -> None:
    contract: Contract[Any] = CONTRACTS[name]
    honoured = {field.encode_name for field in msgspec.structs.fields(contract.body)}
    assert not honoured & set(contract.accepted)
    assert not set(contract.accepted) & set(contract.refused)


def test_only_fields_that_dialects_share_are_refused_by_one_that_has_them() -> None:
    shared = {field.encode_name for field in msgspec.structs.fields(OpenAIFields)}
    for contract in CONTRACTS.values():
        honoured = {field.encode_name for field in msgspec.structs.fields(contract.body)}
        assert honoured & set(contract.refused) <= shared


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_accepted_field_has_its_reason(name: str) -> None:
    """What is accepted without effect says why no answer could show one."""
    assert all(why.endswith(".") for why in CONTRACTS[name].accepted.values())


@pytest.mark.parametrize("name", ["Responses", "Messages"])
def test_every_honoured_field_is_described(name: str) -> None:
    assert all(descriptions(CONTRACTS[name]).values())


def test_every_field_is_on_the_page() -> None:
    fields = PAGE.read_text("utf-8").partition("## Fields\n")[2].partition("## Keys of objects\n")[0]
    told = re.findall(r"^- ((?:`\w+`(?:, )?)+)", fields, re.MULTILINE)
    names = {name.strip("`") for cell in told for name in cell.split(", ")}
    for contract in CONTRACTS.values():
        assert fields_of(contract) <= names


def documented(params: type[Any]) -> set[str]:
    names: set[str] = set()
    for base in (params, *params.__mro__, *params.__orig_bases__):
        names |= set(getattr(base, "__annotations__", {}))
    return names


def test_every_field_of_the_vendors_types_is_known() -> None:
    from anthropic.types import MessageCountTokensParams
    from anthropic.types import message_create_params as messages
    from anthropic.types.beta import message_create_params as beta
    from openai.types.responses import InputTokenCountParams
    from openai.types.responses import response_create_params as responses

    for params in (responses.ResponseCreateParamsBase, InputTokenCountParams):
        assert documented(params) <= fields_of(CONTRACTS["Responses"]) | {"stream"}
    for params in (messages.MessageCreateParamsBase, beta.MessageCreateParamsBase, MessageCountTokensParams):
        assert documented(params) <= fields_of(CONTRACTS["Messages"]) | {"stream"}


def keys_at(head: str, path: str, tag: str | None = None) -> list[set[str]]:
    """The keys of each form that an object there may have."""
    name = path.partition(".")[0].removesuffix("[]")
    return [
        {field.encode_name for field in struct.fields} | ({str(struct.tag_field)} if struct.tag else set())
        for there, struct in objects_of(CONTRACTS[head].settings()[name], name)
        if (there, struct.tag) == (path, tag)
    ]


def test_every_key_of_the_vendors_settings_is_known() -> None:
    from anthropic.types import ToolParam
    from anthropic.types.beta import (
        BetaMCPToolConfigParam,
        BetaMCPToolsetParam,
        BetaOutputConfigParam,
        BetaThinkingConfigAdaptiveParam,
        BetaThinkingConfigEnabledParam,
        BetaToolChoiceAnyParam,
        BetaToolChoiceToolParam,
        BetaToolParam,
    )
    from openai.types.chat import ChatCompletionStreamOptionsParam
    from openai.types.responses import (
        CustomToolParam,
        FunctionToolParam,
        NamespaceToolParam,
        ResponseTextConfigParam,
        ToolChoiceAllowedParam,
        ToolChoiceFunctionParam,
    )
    from openai.types.responses.response_format_text_json_schema_config_param import (
        ResponseFormatTextJSONSchemaConfigParam,
    )
    from openai.types.responses.tool_param import Mcp
    from openai.types.shared_params import FunctionDefinition, Reasoning
    from openai.types.shared_params.response_format_json_schema import JSONSchema

    for head, path, tag, params in (
        ("Chat completions", "stream_options", None, ChatCompletionStreamOptionsParam),
        ("Chat completions", "tools[].function", None, FunctionDefinition),
        ("Chat completions", "response_format.json_schema", None, JSONSchema),
        ("Chat completions", "reasoning", None, Reasoning),
        ("Responses", "reasoning", None, Reasoning),
        ("Responses", "text", None, ResponseTextConfigParam),
        ("Responses", "text.format", "json_schema", ResponseFormatTextJSONSchemaConfigParam),
        ("Responses", "tools[]", "function", FunctionToolParam),
        ("Responses", "tools[]", "custom", CustomToolParam),
        ("Responses", "tools[]", "namespace", NamespaceToolParam),
        ("Responses", "tools[]", "mcp", Mcp),
        ("Responses", "tool_choice", "allowed_tools", ToolChoiceAllowedParam),
        ("Responses", "tool_choice", None, ToolChoiceFunctionParam),
        ("Messages", "tools[]", None, ToolParam),
        ("Messages", "tools[]", None, BetaToolParam),
        ("Messages", "tools[]", "mcp_toolset", BetaMCPToolsetParam),
        ("Messages", "tools[].configs.*", None, BetaMCPToolConfigParam),
        ("Messages", "tool_choice", None, BetaToolChoiceAnyParam),
        ("Messages", "tool_choice", None, BetaToolChoiceToolParam),
        ("Messages", "thinking", None, BetaThinkingConfigEnabledParam),
        ("Messages", "thinking", None, BetaThinkingConfigAdaptiveParam),
        ("Messages", "output_config", None, BetaOutputConfigParam),
    ):
        assert any(documented(params) <= keys for keys in keys_at(head, path, tag)), (head, path)
