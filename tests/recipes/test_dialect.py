"""The recipe "An API dialect" of CONTRIBUTING.md, carried out: one package, and nothing else is told of it."""

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripts.docs.api_page import api_page

from pippin.api import dialects
from tests.api.scripted_server import scripted_server

RULES: tuple[dict[str, Any], ...] = (
    {"when": {"user": "colour"}, "say": "The sky is blue."},
    {"when": {"user": "break"}, "say": "one two three", "fault": {"kind": "error", "after": 2}},
    {"when": {"user": "slow"}, "say": "one two three four five six", "gap": 20.0},
)
EXAMPLE = Path(__file__).parent / "ask_dialect.py"
PACKAGE = f"{dialects.__name__}.ask"


@pytest.fixture(scope="module", autouse=True)
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A second folder of dialects beside the first, which holds the package `ask`."""
    folder = tmp_path_factory.mktemp("dialects")
    (folder / "ask").mkdir()
    (folder / "ask" / "__init__.py").write_text('"""An example. Begin with `dialect.py`."""\n')
    shutil.copy(EXAMPLE, folder / "ask" / "dialect.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialects, "__path__", [*dialects.__path__, str(folder)])
        importlib.invalidate_caches()
        yield
    for name in (f"{PACKAGE}.dialect", PACKAGE):
        sys.modules.pop(name, None)
    if hasattr(dialects, "ask"):
        del dialects.ask


@pytest.fixture(scope="module")
def url(shelf: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with scripted_server(tmp_path_factory.mktemp("script"), *RULES) as url:
        yield url


def ask(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/ask", json=body, timeout=30)


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    frames = [frame.split("\n") for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in frames]


def test_it_answers_in_one_piece(url: str) -> None:
    reply = ask(url, question="Which colour?").json()
    assert reply["id"].startswith("ask-")
    assert reply["reply"] == "The sky is blue."
    assert reply["tokens"] > 0


@pytest.mark.parametrize("path", ["/v1/ask", "/ask"])
def test_it_answers_in_a_stream(url: str, path: str) -> None:
    reply = httpx.post(url + path, json={"question": "Which colour?", "stream": True}, timeout=30)
    assert reply.headers["content-type"].startswith("text/event-stream")
    [began, *said, done] = events_of(reply.text)
    assert {name for name, _ in said} == {"said"}
    assert "".join(each["text"] for _, each in said) == done[1]["reply"] == "The sky is blue."
    assert began[1]["id"] == done[1]["id"]


def test_its_errors_have_its_shape(url: str) -> None:
    reply = ask(url, question="")
    assert reply.status_code == 400
    assert reply.json() == {"problem": "`question` must not be empty.", "field": "question"}


def test_what_its_contract_refuses_is_refused_by_name(url: str) -> None:
    reply = ask(url, question="Which colour?", answer="Red.")
    assert (reply.status_code, reply.json()["field"]) == (400, "answer")


def test_errors_at_its_address_are_drawn_by_it(url: str) -> None:
    reply = httpx.get(f"{url}/v1/ask")
    assert (reply.status_code, set(reply.json())) == (405, {"problem", "field"})


def test_a_failing_stream_ends_in_its_own_event(url: str) -> None:
    name, failure = events_of(ask(url, question="Please break.", stream=True).text)[-1]
    assert name == "failed"
    assert failure["problem"]


@pytest.mark.parametrize("headers", [{}, {"x-request-id": "my-own_1"}])
def test_an_answer_is_stopped_by_its_id(url: str, headers: dict[str, str]) -> None:
    body = {"question": "Be slow.", "stream": True}
    with httpx.stream("POST", f"{url}/v1/ask", json=body, headers=headers, timeout=30) as stream:
        pieces = stream.iter_text()
        [(_, began)] = events_of(next(pieces))[:1]
        assert httpx.post(f"{url}/v1/requests/{began['id']}/cancel").json()["success"]
        assert events_of("".join(pieces))[-1][0] == "failed"


def test_the_openapi_document_describes_it(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    operation = document["paths"]["/v1/ask"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert set(document["components"]["schemas"][body]["properties"]) == {"question", "model", "stream"}
    assert set(document["components"]["schemas"][answer]["properties"]) == {"id", "reply", "tokens"}


def test_the_page_of_the_apis_has_its_fields() -> None:
    before, _, after = api_page().partition("### Refused")
    refused, _, accepted = after.partition("### Accepted")
    [question] = [line for line in before.splitlines() if line.startswith("- `question` (Ask)")]
    assert any("`answer`" in line and "Ask" in line for line in refused.splitlines())
    assert any("`mood`" in line and "Ask" in line for line in accepted.splitlines())
    assert "What is asked." in question
