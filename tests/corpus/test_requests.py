"""The requests of the corpus are understood: no field of a vendor's newest types is one that Pippin does not know."""

import asyncio
import json
from typing import Any, Final

import mcp_types
import msgspec
import ollama
import pytest
from anthropic.types.beta import BetaMessage
from google.genai.types import GenerateContentResponse
from openai.types import Completion, Decision
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel
from typesafe_sdk._schemas.models import SystemOneResponse

from pippin.api.access.errors import GONE
from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.registry import find_dialects
from pippin.api.dialects.shared.fields import Contract
from pippin.api.kinds import decisions, embeddings
from pippin.core.completion import collect
from pippin.core.errors import ServerError
from pippin.core.events import Usage
from pippin.mcp.connection import list_tools, text_of
from tests.api.dialects.golden import RUN
from tests.api.golden_events import SEQUENCES
from tests.corpus.__main__ import REQUESTS

CORPUS: Final = json.loads(REQUESTS.read_text())
DIALECTS: Final = find_dialects()
KINDS: Final[dict[str, Contract[Any]]] = {
    "/embeddings": embeddings.CONTRACT,
    "/decisions": decisions.OPENAI,
    "/systemone": decisions.CONTRACT,
}
LEAST: Final[dict[str, dict[str, Any]]] = {
    "/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "/completions": {"model": "m", "prompt": "Hi"},
    "/responses": {"model": "m", "input": "Hi"},
    "/messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "/embeddings": {"model": "m", "input": "Hi"},
    "/decisions": {"model": "m", "input": "Hi", "questions": [{"type": "predicate", "instructions": "Hi?"}]},
    "/systemone": {"model": "m", "state": "Hi", "questions": {"a": {"type": "noul", "instructions": "Hi?"}}},
    "/api/chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"model": "m", "prompt": "Hi"},
    "/v1beta/models/{model:path}:generateContent": {"contents": [{"parts": [{"text": "Hi"}]}]},
}
REQUESTS_MADE: Final = [
    (registry, package, address)
    for registry, packages in CORPUS.items()
    for package, addresses in packages.items()
    for address in addresses
    if package != "mcp"
]


def read(address: str, body: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields of a body that are not known, and what is warned of. Raises `ServerError` for one that is refused."""
    if address in KINDS:
        return KINDS[address].decode(body)[1], ()
    decoded = DIALECTS[address].decode(body, DecodeContext())
    return decoded.ignored, decoded.warnings


def unknown(address: str, field: str, value: Any) -> list[str]:
    """What is not understood of one field. A value that is refused as a whole is looked at piece by piece."""
    body = json.dumps(LEAST[address] | {field: value}).encode()
    try:
        ignored, warnings = read(address, body)
    except ServerError as error:
        told = f"{error.report.param} {error.report.message}"
        assert field in told, told
        pieces: list[Any] = [{key: inner} for key, inner in value.items()] if isinstance(value, dict) else []
        pieces += [[inner] for inner in value] if isinstance(value, list) else []
        return [each for piece in pieces if len(pieces) > 1 for each in unknown(address, field, piece)]
    # A tool that the vendor runs is left out as a whole, with a warning.
    if any("left out" in warning for warning in warnings):
        return []
    return [name for name in ignored if name.split(".")[0].removesuffix("[]") == field]


@pytest.mark.parametrize(("registry", "package", "address"), REQUESTS_MADE)
def test_every_field_is_honoured_or_refused_by_name(registry: str, package: str, address: str) -> None:
    body = CORPUS[registry][package][address]
    assert len(body) > 3
    assert [name for field, value in body.items() for name in unknown(address, field, value)] == []


def test_each_form_of_decisions_gets_an_answer_of_its_vendor_s_type() -> None:
    kinds = ("noul", "choice", "score", "box")
    criteria: dict[str, Any] = {"choice": {"a": "x", "b": None}, "score": ["x", "y"]}
    questions = {kind: {"type": kind, "instructions": "?", "criteria": criteria.get(kind)} for kind in kinds}
    assets = {"x": {"type": "image", "data_base64": "aGk="}}
    body = json.dumps({"state": "x", "questions": questions, "assets": assets}).encode()
    fields, _ = decisions.CONTRACT.decode(body)
    asked = decisions.about_state(fields, {}).asked
    answers = {
        name: decisions.typed_answer(each, [0.5] * (4 if name == "box" else 2))
        for name, each in zip(kinds, asked, strict=True)
    }
    usage = {"input_tokens": 1, "output_tokens": 0}
    read = SystemOneResponse.model_validate({"model": "m", "answers": answers, "usage": usage})
    assert read.model_dump(mode="json")["answers"] == answers
    listed = [
        {"type": "predicate", "instructions": "?"},
        {"type": "choice", "instructions": "?", "choices": [{"value": "a"}, {"value": True}]},
        {"type": "score", "instructions": "?", "levels": [{"label": "a"}, {"label": "b"}]},
    ]
    given, _ = decisions.OPENAI.decode(json.dumps({"input": "x", "questions": listed}).encode())
    drawn = [decisions.listed_answer(each, [0.5, 0.5]) for each in given.questions]
    reply = decisions.DecisionReply(model="m", answers=drawn, usage=decisions.usage_of(Usage()))
    assert extras(Decision.model_validate_json(msgspec.json.encode(reply))) == set()


def test_what_servers_of_tools_may_answer_is_read() -> None:
    listed, called = CORPUS["PyPI"]["mcp"]["tools/list"], CORPUS["PyPI"]["mcp"]["tools/call"]
    page = mcp_types.ListToolsResult.model_validate(listed | {"nextCursor": None})

    class Server:
        session: Any = None

        async def list_tools(self, params: Any) -> mcp_types.ListToolsResult:
            return page

    server = Server()
    server.session = server
    [found] = asyncio.run(list_tools(server))
    assert (found.name, found.read_only) == ("x", True)
    result = mcp_types.CallToolResult.model_validate(called)
    assert text_of(result.content, result.structured_content).startswith("x\n[")


def test_a_client_of_a_protocol_that_is_not_spoken_is_told() -> None:
    """`lmstudio` asks this first, and goes on over sockets of LM Studio's own."""
    assert "/v1" in GONE["/lmstudio-greeting"]


ANSWERS: Final[dict[str, type[BaseModel]]] = {
    "/chat/completions": ChatCompletion,
    "/completions": Completion,
    "/responses": Response,
    "/messages": BetaMessage,
    "/api/chat": ollama.ChatResponse,
    "/api/generate": ollama.GenerateResponse,
    "/v1beta/models/{model:path}:generateContent": GenerateContentResponse,
}
OWN: Final = {
    *("timings", "reasoning", "reasoning_content", "request_id"),
    *("frequency_penalty", "presence_penalty", "store"),
}
"""What answers tell besides: what clients of local servers read, and what the open form of Responses asks for."""


def extras(value: Any) -> set[str]:
    """The fields of a parsed answer that its type does not have."""
    if isinstance(value, list):
        return {name for each in value for name in extras(each)}
    if not isinstance(value, BaseModel):
        return set()
    inner = {name for key in type(value).model_fields for name in extras(getattr(value, key))}
    return inner | set(value.model_extra or ())


@pytest.mark.parametrize("sequence", ["text", "reasoning_then_tool_call", "length", "cached"])
@pytest.mark.parametrize("address", ANSWERS)
def test_an_answer_has_no_field_that_the_vendor_s_type_does_not(address: str, sequence: str) -> None:
    dialect = DIALECTS[address]
    decoded = dialect.decode(json.dumps(LEAST[address]).encode(), DecodeContext())
    answer = dialect.encoder(decoded.shape, RUN).whole([collect(SEQUENCES[sequence])])
    assert extras(ANSWERS[address].model_validate_json(answer)) <= OWN
