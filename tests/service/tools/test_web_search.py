"""Searches of the web that Pippin makes for a model, as the clients of Anthropic and OpenAI see them."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.chat import dialect as chat
from pippin.api.dialects.messages import dialect as messages
from pippin.api.dialects.responses import dialect as responses
from pippin.config.mcp_file import McpSettings
from pippin.core.conversation import FoundPage, Inline
from pippin.core.errors import ServerError
from pippin.mcp.tools import ToolServers
from pippin.service.tools.web_search import WebSearcher, pages_in
from tests.api.live_server import MODEL, live_server
from tests.clients import anthropic_of, openai_of

SEARCH_SERVER = Path(__file__).parents[2] / "mcp" / "search_server.py"
FOUND = [
    {"url": "https://docs.example.org/pippin", "title": "Pippin", "content": "A server."},
    {"url": "https://bad.example.net/x", "title": "Bad", "content": "x" * 5000},
]
CALL = {"name": "web_search", "arguments": {"query": "what is pippin?"}}
CITED = "It is a server (https://docs.example.org/pippin)."
SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": {"tool_result": "docs.example.org"}, "say": CITED},
        {"when": {"tool_result": "failed"}, "say": "No search."},
        {"when": {"tool_result": ""}, "say": "Nothing."},
        {"when": {"user": "pippin"}, "calls": [CALL]},
    ]
}
ASKED: Any = [{"role": "user", "content": "What is pippin?"}]
SEARCH: Any = {"type": "web_search_20250305", "name": "web_search"}


class Engine(BaseHTTPRequestHandler):
    """A search engine that finds the same for every question."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"query": "q", "results": FOUND}).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def engine() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, engine: ThreadingHTTPServer) -> Iterator[str]:
    named = f"http://127.0.0.1:{engine.server_port}/search?format=json&q={{query}}"
    folder = tmp_path_factory.mktemp("live")
    with live_server(folder, SCRIPT, web_search=named, media_hosts=("127.0.0.1",)) as address:
        yield address


@pytest.fixture(scope="module")
def anthropic(address: str) -> Iterator[Anthropic]:
    with anthropic_of(address) as made:
        yield made


@pytest.fixture(scope="module")
def openai(address: str) -> Iterator[OpenAI]:
    with openai_of(address) as made:
        yield made


def test_messages_show_the_search_and_what_it_found(
    anthropic: Anthropic, engine: ThreadingHTTPServer
) -> None:
    answer = anthropic.messages.create(model=MODEL, max_tokens=99, messages=ASKED, tools=[SEARCH])
    used, found, said = answer.content
    assert used.type == "server_tool_use"
    assert (used.name, used.input) == ("web_search", {"query": "what is pippin?"})
    assert found.type == "web_search_tool_result"
    assert found.tool_use_id == used.id
    assert isinstance(found.content, list)
    assert [(page.url, page.title) for page in found.content] == [
        (each["url"], each["title"]) for each in FOUND
    ]
    assert said.type == "text"
    assert said.text == CITED
    assert engine.asked[-1] == "/search?format=json&q=what%20is%20pippin%3F"  # type: ignore[attr-defined]
    history: Any = [
        *ASKED,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": "Go on"},
    ]
    counted = anthropic.messages.count_tokens(model=MODEL, messages=history)
    assert counted.input_tokens > 5


def test_messages_stream_the_same(anthropic: Anthropic) -> None:
    with anthropic.messages.stream(model=MODEL, max_tokens=99, messages=ASKED, tools=[SEARCH]) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["server_tool_use", "web_search_tool_result", "text"]
    assert final.content[0].input == {"query": "what is pippin?"}  # type: ignore[union-attr]


def test_domains_that_are_not_wanted_are_left_out(anthropic: Anthropic) -> None:
    for filters in ({"allowed_domains": ["example.org"]}, {"blocked_domains": ["bad.example.net"]}):
        answer = anthropic.messages.create(
            model=MODEL, max_tokens=99, messages=ASKED, tools=[{**SEARCH, **filters}]
        )
        [found] = [block for block in answer.content if block.type == "web_search_tool_result"]
        assert isinstance(found.content, list)
        assert [page.title for page in found.content] == ["Pippin"]


def test_a_second_search_in_one_request_is_refused_by_name(address: str) -> None:
    asked = {"model": MODEL, "max_tokens": 9, "messages": ASKED, "tools": [SEARCH, SEARCH | {"max_uses": 1}]}
    two = [{"type": "web_search"}, {"type": "web_search_preview"}]
    for path, body in (("messages", asked), ("responses", {"model": MODEL, "input": "Hi", "tools": two})):
        reply = httpx.post(f"{address}/v1/{path}", json=body, timeout=30)
        assert reply.status_code == 400
        assert "tools[1].type" in reply.json()["error"]["message"]


def test_responses_show_a_call_and_cite(openai: OpenAI) -> None:
    answer = openai.responses.create(
        model=MODEL,
        input="What is pippin?",
        tools=[{"type": "web_search"}],
        include=["web_search_call.action.sources"],
    )
    call, message = answer.output
    assert call.type == "web_search_call"
    assert call.status == "completed"
    assert call.action.type == "search"
    assert call.action.query == "what is pippin?"
    assert [source.url for source in call.action.sources or ()] == [each["url"] for each in FOUND]
    assert message.type == "message"
    [text] = message.content
    assert text.type == "output_text"
    [citation] = text.annotations
    assert citation.type == "url_citation"
    assert text.text[citation.start_index : citation.end_index] == citation.url == FOUND[0]["url"]


def test_responses_stream_the_steps_of_a_search(openai: OpenAI) -> None:
    events = openai.responses.create(
        model=MODEL, input="What is pippin?", tools=[{"type": "web_search"}], stream=True
    )
    kinds = [event.type for event in events]
    steps = [kind for kind in kinds if "web_search" in kind or "annotation" in kind]
    assert steps == [
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_text.annotation.added",
    ]
    assert kinds[-1] == "response.completed"


def test_chat_completions_cite(openai: OpenAI) -> None:
    whole = openai.chat.completions.create(model=MODEL, messages=ASKED, web_search_options={})
    message = whole.choices[0].message
    assert message.content == CITED
    [citation] = message.annotations or ()
    assert citation.url_citation.title == "Pippin"
    stream = openai.chat.completions.create(model=MODEL, messages=ASKED, web_search_options={}, stream=True)
    told = [chunk.choices[0].delta.model_extra or {} for chunk in stream if chunk.choices]
    assert [each["annotations"] for each in told if "annotations" in each] == [
        [json.loads(citation.model_dump_json())]
    ]


def test_a_failed_search_is_told(tmp_path: Path) -> None:
    with (
        live_server(tmp_path, SCRIPT, web_search="http://127.0.0.1:9/?q={query}") as address,
        anthropic_of(address) as client,
    ):
        answer = client.messages.create(model=MODEL, max_tokens=99, messages=ASKED, tools=[SEARCH])
        _, found, said = answer.content
        assert found.type == "web_search_tool_result"
        assert not isinstance(found.content, list)
        assert found.content.error_code == "unavailable"
        assert said.type == "text"
        assert said.text == "No search.", (
            "an address of this machine is refused unless the operator lists its host"
        )


def test_without_the_option_nothing_searches(tmp_path: Path) -> None:
    with live_server(tmp_path, {"rules": [{"say": "Hi."}]}) as address:
        body = {"model": MODEL, "messages": ASKED}
        said = httpx.post(
            f"{address}/v1/messages", json={**body, "max_tokens": 9, "tools": [SEARCH]}, timeout=30
        ).json()
        assert [block["type"] for block in said["content"]] == ["text"]
        refused = httpx.post(
            f"{address}/v1/chat/completions", json={**body, "web_search_options": {}}, timeout=30
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "web_search_options"


def test_a_tool_of_an_mcp_server_searches(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    server = {"command": sys.executable, "args": [str(SEARCH_SERVER)], "allowed_tools": ["find"]}
    config.write_text(json.dumps({"mcpServers": {"demo": server}}))
    with (
        live_server(tmp_path, SCRIPT, mcp_config=str(config), web_search="mcp:demo/find") as address,
        openai_of(address) as client,
    ):
        deadline = time.monotonic() + 60
        while not httpx.get(f"{address}/v1/mcp/tools", timeout=30).json()["count"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        answer = client.responses.create(model=MODEL, input="What is pippin?", tools=[{"type": "web_search"}])
        assert answer.output_text == CITED


@pytest.mark.parametrize("form", ["chat", "messages", "responses"])
def test_where_the_user_is_stands_in_the_tool(form: str) -> None:
    place = {"type": "approximate", "city": "Rome", "country": "IT"}
    dialect, body = {
        "chat": (chat.dialect, {"messages": ASKED}),
        "messages": (messages.dialect, {"messages": ASKED, "max_tokens": 9}),
        "responses": (responses.dialect, {"input": "Hi"}),
    }[form]
    given: dict[str, Any] = {"tools": [{"type": "web_search_20250305", "user_location": place}]}
    if form == "chat":
        given = {"web_search_options": {"user_location": {"type": "approximate", "approximate": place}}}
    asked = json.dumps({"model": "m", **body, **given}).encode()
    [request] = dialect.decode(asked, DecodeContext(searches=True)).requests
    assert request.web_search is not None
    offered = WebSearcher(None, ToolServers(McpSettings()), fetch_nothing).tool(request.web_search)
    assert "Rome, IT" in offered.remote.description


async def fetch_nothing(url: str, param: str) -> Inline:
    raise ServerError("invalid_request", f"{param} is not there.")


def test_a_page_without_a_text_is_fetched_by_the_rules_for_media() -> None:
    asked: list[str] = []

    async def fetch(url: str, param: str) -> Inline:
        asked.append(url)
        if url.endswith("private"):
            raise ServerError("invalid_request", "The page is on a private network.")
        return Inline(
            b"<title>No</title><script>if (a<b) no</script><p>Fish &amp; chips" + b" x" * 5000, "text/html"
        )

    searcher = WebSearcher(None, ToolServers(McpSettings()), fetch)
    pages = [FoundPage(f"https://a.example/{name}", name, text) for name, text in PAGES.items()]
    read = [asyncio.run(searcher.read(page)) for page in pages]
    assert asked == ["https://a.example/bare", "https://a.example/private"]
    assert [page.text[:12] for page in read] == ["told", "Fish & chips", ""]
    assert len(read[1].text) == 2000


PAGES = {"told": "told", "bare": "", "private": ""}


@pytest.mark.parametrize(
    ("answer", "urls"),
    [
        (json.dumps(FOUND), 2),
        (json.dumps({"web": {"results": [{"link": "https://a.example/1", "name": "A"}]}}), 1),
        ("Title: A\nURL: https://a.example/1.\nText\n\nB https://b.example/2\n\nnothing", 2),
        ("[]", 0),
        (json.dumps([{"url": "javascript:alert(1)"}, {"url": "file:///etc/passwd"}]), 0),
        ("[" * 5000, 0),
    ],
    ids=["list", "nested", "text", "nothing", "other schemes", "too deep"],
)
def test_pages_are_picked_out_of_any_form(answer: str, urls: int) -> None:
    found = pages_in(answer)
    assert len(found) == urls
    assert all(len(page.text) <= 2000 for page in found)
