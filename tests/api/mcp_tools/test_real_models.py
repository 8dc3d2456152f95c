"""Pippin's MCP server asked by a real client, with real models behind its tools."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mcp.client.streamable_http import streamable_http_client

import mcp
from tests.running_server import running_server

pytestmark = [pytest.mark.model, pytest.mark.long]


def test_a_language_model_answers_and_an_embedding_model_compares(
    demo_model: Path, minilm: Path, tmp_path: Path
) -> None:
    texts = ["A cat sleeps.", "A kitten is asleep.", "Revenue grew by a tenth."]

    async def main(url: str) -> tuple[Any, Any, Any]:
        async with mcp.Client(streamable_http_client(f"{url}/mcp")) as client:
            listed = await client.call_tool("list_models", {})
            asked = {"prompt": "What is the capital of France?", "temperature": 0, "max_tokens": 20}
            said = await client.call_tool("complete", asked)
            shape = {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}},
                "required": ["city"],
            }
            chosen = await client.call_tool("complete", asked | {"schema": shape})
            assert not chosen.is_error
            assert json.loads(chosen.content[0].text)["city"] in ("Paris", "Rome")
            return listed, said, await client.call_tool("embed", {"texts": texts})

    with running_server(tmp_path, str(demo_model), str(minilm)) as address:
        listed, said, embedded = asyncio.run(main(address))
    assert {each["kind"] for each in listed.structured_content["models"]} == {"language", "embeddings"}
    assert "Paris" in said.structured_content["text"]
    assert said.structured_content["completion_tokens"] <= 20
    cat, kitten, revenue = embedded.structured_content["vectors"]
    assert product(cat, kitten) > product(cat, revenue) + 0.3


def product(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
