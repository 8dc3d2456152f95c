"""The shape of the API's beta, by the client that the `openai` package still has for it."""

import asyncio
import base64
import json
from typing import Any

from openai import AsyncOpenAI

from tests.api.live_server import MODEL
from tests.api.sockets.realtime import test_client
from tests.api.sockets.realtime.client import validate_old
from tests.api.sockets.realtime.test_client import TOOL
from tests.api.sockets.realtime.test_sound import speech

SCRIPT = test_client.SCRIPT


async def until(talk: Any, *types: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in (*types, "error"):
        events.append(json.loads(await talk.recv_bytes()))
        validate_old(events[-1])
    assert events[-1]["type"] != "error", events[-1]
    return events


async def converse(address: str) -> None:
    address = f"{address}/v1"
    client = AsyncOpenAI(base_url=address, websocket_base_url=address.replace("http", "ws"), api_key="x")
    async with client.beta.realtime.connect(model=MODEL) as talk:
        [created] = await until(talk, "session.created")
        assert created["session"]["input_audio_format"] == "pcm16"
        assert created["session"]["modalities"] == ["audio", "text"]
        await talk.session.update(
            session={
                "modalities": ["text"],
                "instructions": "Be brief.",
                "temperature": 0.6,
                "max_response_output_tokens": 40,
                "turn_detection": {"type": "server_vad", "silence_duration_ms": 600},
                "input_audio_transcription": {"language": "en"},
            }
        )
        [updated] = await until(talk, "session.updated")
        session = updated["session"]
        assert (session["modalities"], session["temperature"]) == (["text"], 0.6)
        assert session["max_response_output_tokens"] == 40
        assert session["turn_detection"]["silence_duration_ms"] == 600

        content: Any = [{"type": "input_text", "text": "weather"}]
        await talk.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await until(talk, "conversation.item.created")
        await talk.response.create(response={"tools": [TOOL]})
        [call] = (await until(talk, "response.done"))[-1]["response"]["output"]
        result: Any = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        await talk.conversation.item.create(item=result)
        await until(talk, "conversation.item.created")
        await talk.response.create()
        events = await until(talk, "response.done")
        assert "".join(e["delta"] for e in events if e["type"] == "response.text.delta") == "It rains."
        assert events[-1]["response"]["output"][0]["content"] == [{"type": "text", "text": "It rains."}]

        await talk.session.update(
            session={"modalities": ["text", "audio"], "output_audio_format": "g711_ulaw"}
        )
        await until(talk, "session.updated")
        await talk.input_audio_buffer.append(audio=base64.b64encode(speech()).decode())
        events = await until(talk, "response.done")
        names = {event["type"] for event in events}
        assert {"response.audio.delta", "response.audio_transcript.delta"} <= names
        assert not any("output_" in name and "item" not in name for name in names)
        assert events[-1]["response"]["output_audio_format"] == "g711_ulaw"


def test_the_client_of_the_beta_types_calls_and_speaks(address: str) -> None:
    asyncio.run(asyncio.wait_for(converse(address), 60))
