"""One caller beside another who fills every place of a model with streams that do not end."""

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import httpx

from pippin.config.options.model import ModelOptions
from tests.api.live_server import MODEL, live_server

STREAMS: Final = 50
SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": {"user": "on and on"}, "say": " ".join(["word"] * 4000), "gap": 0.05},
        {"when": {"user": "hello"}, "say": "Hi.", "delay": 0.5},
    ]
}


async def first_token(client: httpx.AsyncClient, key: str, text: str) -> float:
    """Seconds until the first text of a streamed answer has come."""
    begun = time.monotonic()
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if '"content":"' in line and '"content":""' not in line:
                return time.monotonic() - begun
    raise AssertionError("the answer had no text")


async def on_and_on(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "on and on"}]}
    headers = {"authorization": "Bearer greedy"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
        async for _ in reply.aiter_raw():
            pass


async def until_all_wait(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(30):
        while True:
            told = (await client.get("/v1/status", headers={"authorization": "Bearer root"})).json()
            if told["num_running"] + told["num_waiting"] >= STREAMS:
                return
            await asyncio.sleep(0.05)


def test_another_callers_first_token_comes_nearly_as_soon_as_alone(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("root: {key: root, role: admin}\ngreedy: {key: greedy}\nother: {key: other}\n")

    async def main(address: str) -> tuple[float, float]:
        async with httpx.AsyncClient(base_url=address, timeout=60, limits=httpx.Limits()) as client:
            await first_token(client, "other", "hello")  # the model is loaded
            alone = await first_token(client, "other", "hello")
            streams = [asyncio.create_task(on_and_on(client)) for _ in range(STREAMS)]
            await until_all_wait(client)
            beside = await first_token(client, "other", "hello")
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
            return alone, beside

    options = {"api_key_file": str(keys), "model_defaults": ModelOptions(max_num_seqs=4)}
    with live_server(tmp_path, SCRIPT, **options) as address:
        alone, beside = asyncio.run(main(address))
    assert beside < 3 * alone
