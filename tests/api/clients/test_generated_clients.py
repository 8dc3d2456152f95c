"""Clients that two generators make of the OpenAPI document compile, and call the server it is of."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.agents.programs import node_folder, python_environment
from tests.api.scripted_server import scripted_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first run fetches the generators

PYTHON = """
import sys
from client import Client
from client.api.embeddings import post_embeddings
from client.api.models import get_models
from client.models import EmbeddingRequest

with Client(base_url=sys.argv[1]) as client:
    assert get_models.sync(client=client)["data"][0]["id"] == "scripted"
    reply = post_embeddings.sync(client=client, body=EmbeddingRequest(input_="a text", model="scripted"))
    assert len(reply.data[0].embedding) == 16, reply
"""
TYPESCRIPT = """
import createClient from "openapi-fetch";
import type { paths } from "./api";

const client = createClient<paths>({ baseUrl: process.argv[2]! });
const models = await client.GET("/v1/models");
if (models.error !== undefined) throw new Error(models.error.error.message);
const { data, error } = await client.POST("/v1/tokenize", { body: { prompt: "Hello there" } });
if (error !== undefined) throw new Error(error.error.message);
console.log(JSON.stringify(data));
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with scripted_server(tmp_path) as url:
        yield url


@pytest.fixture
def document(address: str, tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_bytes(httpx.get(f"{address}/openapi.json").content)
    return path


def run(command: list[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_python_client_is_generated_and_calls(address: str, document: Path, tmp_path: Path) -> None:
    commands = python_environment("openapi-python-client", "openapi-python-client==0.29.1")
    generate = ["generate", "--path", document, "--output-path", tmp_path / "client", "--meta", "none"]
    told = run([commands / "openapi-python-client", *generate], tmp_path)
    assert "Unable to process schema" not in told
    run([sys.executable, "-m", "compileall", "-q", tmp_path / "client"], tmp_path)
    run([commands / "python", "-c", PYTHON, address], tmp_path)


def test_types_for_typescript_are_generated_compile_and_call(address: str, document: Path) -> None:
    packages = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3", "@types/node@20")
    folder = node_folder("openapi", *packages)
    (folder / "package.json").write_text(
        json.dumps(json.loads((folder / "package.json").read_text()) | {"type": "module"})
    )
    (folder / "use.ts").write_text(TYPESCRIPT)
    tools = folder / "node_modules" / ".bin"
    run(
        [tools / "openapi-typescript", document, "-o", folder / "api.d.ts", "--default-non-nullable=false"],
        folder,
    )
    options = ["--strict", "--target", "es2022", "--module", "es2022", "--moduleResolution", "bundler"]
    run([tools / "tsc", *options, "--types", "node", "use.ts"], folder)
    assert json.loads(run(["node", folder / "use.js", address], folder))["count"] == 3
