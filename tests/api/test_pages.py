"""docs/api.md says of every field of every dialect what becomes of it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pippin.api.dialects.fields import Contract
from pippin.api.dialects.openai_fields import OpenAIFields
from pippin.api.pages import CONTRACTS, api_page, descriptions, fields_of

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
    page = PAGE.read_text("utf-8")
    for contract in CONTRACTS.values():
        for name in fields_of(contract):
            assert f"| `{name}` |" in page


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
