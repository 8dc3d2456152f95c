"""Pictures, sound and documents for a model that reads text only, in every dialect."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.chat.dialect import ChatDialect
from pippin.api.dialects.messages.dialect import MessagesDialect
from pippin.api.dialects.ollama.dialect import dialects as ollama
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.core.conversation import Image, Text
from pippin.core.errors import ServerError
from pippin.core.events import Rendered
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import RenderTemplate
from pippin.engines.scripted.preparer import ScriptedPreparer
from tests.api.scripted_server import scripted_server
from tests.engines.attachments.pdfs import pdf
from tests.engines.attachments.test_reading import png
from tests.service.doubles import write_script

READS_TEXT: dict[str, Any] = {"capabilities": {"chat": True, "tools": True}, "context_window": 50_000}
# Ollama tells no media type.
LINE = re.compile(r"\[Picture left out:(?: image/png:)? this model reads text only\.\]")
PAGES = "2 pages]\n[Page 1]\nWombats dig.\n[Page 2]\nThey sleep."


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


PICTURE, PAPER = base64_of(png(640, 480)), base64_of(pdf("Wombats dig.", "They sleep."))
PICTURE_URL, PAPER_URL = f"data:image/png;base64,{PICTURE}", f"data:application/pdf;base64,{PAPER}"


def source(kind: str, data: str) -> dict[str, Any]:
    return {"type": "base64", "media_type": kind, "data": data}


CHAT_PICTURE = {"type": "image_url", "image_url": {"url": PICTURE_URL}}
CHAT_FILE = {"type": "file", "file": {"file_data": PAPER_URL, "filename": "w.pdf"}}
ITEM_PICTURE = {"type": "input_image", "image_url": PICTURE_URL}
ITEM_FILE = {"type": "input_file", "file_data": PAPER_URL, "filename": "w.pdf"}
BLOCK_PICTURE = {"type": "image", "source": source("image/png", PICTURE)}
BLOCK_FILE = {"type": "document", "title": "w.pdf", "source": source("application/pdf", PAPER)}


def chat(part: Any, result: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "user", "content": [part]},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [result]},
        ]
    }


def messages(part: Any, result: Any) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    answer = {"type": "tool_result", "tool_use_id": "c", "content": [result]}
    return {
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": [part]},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [answer]},
        ],
    }


def responses(part: Any, result: Any) -> dict[str, Any]:
    return {
        "input": [
            {"role": "user", "content": [part]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [result]},
        ]
    }


CASES: list[tuple[Any, dict[str, Any], int, int]] = [
    (ChatDialect(), chat(CHAT_PICTURE, CHAT_PICTURE), 2, 0),
    (ChatDialect(), chat(CHAT_FILE, CHAT_FILE), 0, 2),
    (MessagesDialect(), messages(BLOCK_PICTURE, BLOCK_PICTURE), 2, 0),
    (MessagesDialect(), messages(BLOCK_FILE, BLOCK_FILE), 0, 2),
    (ResponsesDialect(), responses(ITEM_PICTURE, ITEM_PICTURE), 2, 0),
    (ResponsesDialect(), responses(ITEM_FILE, ITEM_FILE), 0, 2),
    (
        ollama[0],
        {
            "messages": [
                {"role": "user", "content": "look", "images": [PICTURE]},
                {"role": "assistant", "content": "A"},
                {"role": "user", "content": "Q"},
            ]
        },
        1,
        0,
    ),
]


@pytest.fixture(scope="module")
def preparer(tmp_path_factory: pytest.TempPathFactory) -> ScriptedPreparer:
    path = write_script(tmp_path_factory.mktemp("script"), **READS_TEXT)
    return ScriptedPreparer(WorkerSpec(info=ModelInfo(id="scripted", kind="scripted", path=str(path))))


def prompt(preparer: ScriptedPreparer, dialect: Any, **body: Any) -> str:
    decoded = dialect.decode(json.dumps({"model": "scripted", **body}).encode(), DecodeContext())
    [rendered] = preparer.prepare("1", RenderTemplate(decoded.requests[0]))  # type: ignore[misc]
    assert isinstance(rendered, Rendered)
    return rendered.text


@pytest.mark.parametrize(("dialect", "body", "lines", "papers"), CASES)
def test_history_is_lines_for_pictures_and_text_for_documents(
    preparer: ScriptedPreparer, dialect: Any, body: dict[str, Any], lines: int, papers: int
) -> None:
    text = prompt(preparer, dialect, **body)
    assert len(LINE.findall(text)) == lines
    assert text.count(PAGES) == papers
    assert text.count("[Document: w.pdf, application/pdf, ") == papers


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ollama_chat", {"messages": [{"role": "user", "content": "look", "images": [PICTURE]}]}),
        ("ollama_generate", {"prompt": "look", "images": [PICTURE]}),
    ],
)
def test_pictures_of_ollama_stand_before_the_text_of_their_message(name: str, body: dict[str, Any]) -> None:
    [dialect] = [each for each in ollama if each.name == name]
    decoded = dialect.decode(json.dumps({"model": "m", **body}).encode(), DecodeContext())
    assert [type(part) for part in decoded.requests[0].messages[-1].parts] == [Image, Text]


OTHER: dict[str, bytes] = {
    "a zip": b"PK\x03\x04\n\x00\x00",
    "NULs": b"a\0b\0",
    "a PNG": png(8, 8),
    "Latin-1": "é".encode("latin-1"),
}


@pytest.mark.parametrize("data", OTHER.values(), ids=OTHER)
def test_bytes_that_are_no_text_are_refused_in_the_question_and_told_before_it(
    preparer: ScriptedPreparer, data: bytes
) -> None:
    coded = base64_of(data)
    block = {"type": "document", "source": source("text/plain", coded)}
    for dialect, make, part, field, param in (
        (ChatDialect(), chat, {"type": "file", "file": {"file_data": coded}}, "messages", "file.file_data"),
        (ResponsesDialect(), responses, {"type": "input_file", "file_data": coded}, "input", "file_data"),
        (MessagesDialect(), messages, block, "messages", "source.data"),
    ):
        body: dict[str, Any] = make(part, part)  # type: ignore[operator]
        line = "[Document left out: it is not supported: only PDF and UTF-8 text can be read.]"
        assert prompt(preparer, dialect, **body).count(line) == 2
        with pytest.raises(ServerError, match="only PDF and UTF-8 text") as caught:
            prompt(preparer, dialect, **body | {field: body[field][:1]})
        assert (caught.value.report.param or "").endswith(f"[0].{param}")


def test_the_source_of_a_pdf_is_no_text(preparer: ScriptedPreparer) -> None:
    raw = {"type": "text", "media_type": "text/plain", "data": pdf("Wombats dig.", "They sleep.").decode()}
    text = prompt(preparer, MessagesDialect(), **messages({"type": "document", "source": raw}, BLOCK_FILE))
    assert text.count(PAGES) == 2
    assert "%PDF" not in text


@pytest.mark.parametrize("name", ["a.md", "a.csv", "a.json", "a.txt"])
def test_files_of_text_stay_text(preparer: ScriptedPreparer, name: str) -> None:
    file = {"type": "file", "file": {"file_data": base64_of(b'{"a": 1}\n'), "filename": name}}
    assert f'{name}:\n{{"a": 1}}' in prompt(preparer, ChatDialect(), **chat(file, CHAT_FILE))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    rules = (
        {"when": {"tool_result": "Wombats dig"}, "say": "They dig."},
        {"when": {"tool_result": "Picture left out: image/png"}, "say": "I can't see it."},
    )
    with scripted_server(tmp_path_factory.mktemp("server"), *rules, **READS_TEXT) as url:
        yield url


def post(address: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{address}{path}", json={"model": "scripted", **body}, timeout=60)


def test_an_agent_goes_on_after_a_picture_and_a_paper(address: str) -> None:
    for path, body in (
        ("/v1/chat/completions", chat(CHAT_PICTURE, CHAT_PICTURE)),
        ("/v1/messages", messages(BLOCK_PICTURE, BLOCK_PICTURE)),
        ("/v1/responses", responses(ITEM_PICTURE, ITEM_PICTURE)),
    ):
        reply = post(address, path, **body)
        assert reply.status_code == 200
        assert "I can't see it." in reply.text
    assert "They dig." in post(address, "/v1/messages", **messages(BLOCK_FILE, BLOCK_FILE)).text


def test_a_picture_in_the_question_is_refused_by_its_place(address: str) -> None:
    reply = post(address, "/v1/chat/completions", messages=[{"role": "user", "content": [CHAT_PICTURE]}])
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "messages[0].content[0]"
    assert "text only" in reply.json()["error"]["message"]


def test_the_oldest_of_too_many_pictures_are_left_out(address: str) -> None:
    turns = [{"role": "user", "content": [CHAT_PICTURE]}, {"role": "assistant", "content": "A"}] * 70
    asked = {"role": "user", "content": "Q"}
    assert post(address, "/v1/chat/completions", messages=[*turns, asked]).status_code == 200
    crowded = {"role": "user", "content": [CHAT_PICTURE] * 65}
    refused = post(address, "/v1/chat/completions", messages=[crowded]).json()["error"]
    assert "65 media parts; send at most 64" in refused["message"]


def test_an_address_that_leads_nowhere_ends_no_conversation(address: str) -> None:
    lost = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}
    body = chat(lost, CHAT_FILE)
    assert post(address, "/v1/chat/completions", **body).status_code == 200
    body["messages"] = body["messages"][:1]
    assert post(address, "/v1/chat/completions", **body).status_code == 400
