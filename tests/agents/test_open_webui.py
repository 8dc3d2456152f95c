"""Open WebUI by pip, as its users start it: its own server, which finds the models and passes chats on."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.agents.programs import clean_environment, python_environment
from tests.api.scripted_server import scripted_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # the first run fetches 260 packages

PACKAGES: Final = ("open-webui==0.12.4", "torch==2.13.0")
START_SECONDS: Final = 600  # it makes its database and imports PyTorch
RULES: Final[tuple[dict[str, Any], ...]] = (
    {"when": {"user": "concise"}, "say": '{"title": "A greeting"}'},
    {"when": {"user": "."}, "say": "Hello there."},
)
ASKED: Final = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def web_ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of an Open WebUI without logins, which has Pippin as OpenAI and as Ollama."""
    home = tmp_path_factory.mktemp("open-webui")
    command = python_environment("open_webui", *PACKAGES) / "open-webui"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with scripted_server(home, *RULES) as address:
        variables = clean_environment(
            home,
            DATA_DIR=str(home / "data"),
            OPENAI_API_BASE_URL=f"{address}/v1",
            OPENAI_API_KEY="none",
            OLLAMA_BASE_URL=address,
            WEBUI_AUTH="False",
            WEBUI_SECRET_KEY="none",
            RAG_EMBEDDING_ENGINE="openai",  # or it fetches a model for it from the hub
            OFFLINE_MODE="True",
            HF_HUB_OFFLINE="1",
            ANONYMIZED_TELEMETRY="false",
        )
        with (home / "log").open("w") as log:
            process = subprocess.Popen(
                [command, "serve", "--host", "127.0.0.1", "--port", str(port)],
                env=variables,
                cwd=home,
                stdout=log,
                stderr=log,
            )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                wait_for(client, process, home / "log")
                signed = client.post("/api/v1/auths/signin", json={"email": "", "password": ""})
                client.headers["authorization"] = f"Bearer {signed.json()['token']}"
                client.get("/api/models").raise_for_status()  # it asks its providers now
                yield client
        finally:
            process.kill()
            process.wait()


def wait_for(client: httpx.Client, process: "subprocess.Popen[bytes]", log: Path) -> None:
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-5000:])


def test_it_finds_the_models_of_both_apis(web_ui: httpx.Client) -> None:
    listed = {each["id"]: each for each in web_ui.get("/api/models").json()["data"]}
    assert {"scripted", "scripted:latest"} <= set(listed)
    assert listed["scripted"]["owned_by"] == "openai"
    assert listed["scripted:latest"]["owned_by"] == "ollama"


@pytest.mark.parametrize("model", ["scripted", "scripted:latest"])
def test_a_chat_is_streamed(web_ui: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": ASKED, "stream": True}
    said = ""
    with web_ui.stream("POST", "/api/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: ")).get("choices", []):
                    said += choice["delta"].get("content") or ""
    assert said == "Hello there."


def test_ollamas_own_routes_are_passed_on(web_ui: httpx.Client) -> None:
    body = {"model": "scripted:latest", "messages": ASKED, "stream": False}
    assert web_ui.post("/ollama/api/chat", json=body).json()["message"]["content"] == "Hello there."
    assert web_ui.get("/ollama/api/version").json()["version"]


def test_it_asks_for_a_title(web_ui: httpx.Client) -> None:
    messages = [*ASKED, {"role": "assistant", "content": "Hello there."}]
    body = {"model": "scripted", "messages": messages, "chat_id": "local:1"}
    reply = web_ui.post("/api/v1/tasks/title/completions", json=body).json()
    assert json.loads(reply["choices"][0]["message"]["content"]) == {"title": "A greeting"}
