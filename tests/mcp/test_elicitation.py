"""What a server hears that asks a person something: that nobody is there, or what the operator lets Pippin say.

That the question reaches this code is shown by the conformance suite's `elicitation-sep1034-client-defaults`.
"""

import asyncio
import logging
from typing import Any

import mcp_types
import pytest

from pippin.config.mcp_file import McpServer
from pippin.mcp.elicitation import Answers

SIZE = {"type": "integer", "default": 3}
NAME = {"type": "string"}
FORMS: dict[str, dict[str, Any]] = {
    "defaults": {"properties": {"size": SIZE}, "required": ["size"]},
    "optional": {"properties": {"size": SIZE, "name": NAME}},
    "demanding": {"properties": {"name": NAME}, "required": ["name"]},
    "empty": {},
}


def answered(form: str, *, trusted: bool) -> mcp_types.ElicitResult:
    server = McpServer(name="far", transport="http", url="http://x", trusted=trusted)
    asked = mcp_types.ElicitRequestFormParams(message="my secret", requested_schema=FORMS[form])
    return asyncio.run(Answers(server)(None, asked))


@pytest.mark.parametrize("form", FORMS)
def test_nobody_answers_for_a_person(form: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert answered(form, trusted=False).action == "decline"
    assert "nobody is there to answer" in caplog.text
    assert "my secret" not in caplog.text


@pytest.mark.parametrize(
    ("form", "content"), [("defaults", {"size": 3}), ("optional", {"size": 3}), ("empty", {})]
)
def test_a_trusted_server_gets_its_own_defaults(form: str, content: dict[str, Any]) -> None:
    answer = answered(form, trusted=True)
    assert (answer.action, answer.content) == ("accept", content)


def test_what_has_no_default_is_declined_even_so() -> None:
    assert answered("demanding", trusted=True).action == "decline"


def test_nobody_is_sent_to_an_address() -> None:
    server = McpServer(name="far", transport="http", url="http://x", trusted=True)
    asked = mcp_types.ElicitRequestURLParams(message="Pay.", url="http://pay", elicitation_id="1")
    assert asyncio.run(Answers(server)(None, asked)).action == "decline"
