"""The `openai` package's own realtime client, over the scripted engine, and over real models: text, tools, speech."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.api.live_server import MODEL
from tests.api.sockets.realtime.test_sound import speech
from tests.engines.speech.test_speech_models import write_model
from tests.running_server import running_server

SCRIPT: dict[str, Any] = {
    "capabilities": {"chat": True, "tools": True},
    "rules": [
        {"when": {"tool_result": "rain"}, "say": "It rains."},
        {"when": {"user": "weather"}, "calls": [{"name": "look", "arguments": {"city": "Oslo"}}]},
        {"when": {"user": "audio.wav"}, "say": "I heard you well."},
    ],
}
TOOL: Any = {
    "type": "function",
    "name": "look",
    "description": "Looks out of the window in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def client_of(address: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0)


async def say(talk: Any, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    await talk.conversation.item.create(item={"type": "message", "role": "user", "content": content})


async def response_of(talk: Any) -> tuple[Any, str, bytes]:
    """A response that was begun: itself, its text or transcript, and its sound."""
    text, sound = "", b""
    async for event in talk:
        match event.type:
            case "response.output_text.delta" | "response.output_audio_transcript.delta":
                text += event.delta
            case "response.output_audio.delta":
                sound += base64.b64decode(event.delta)
            case "response.done":
                return event.response, text, sound
            case "error":
                raise AssertionError(event.error)
    raise AssertionError("the connection ended")


async def converse(address: str) -> None:
    async with client_of(address).realtime.connect(model=MODEL) as talk:
        await talk.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        await say(talk, "one two")
        await talk.response.create()
        response, text, _ = await response_of(talk)
        assert (response.status, text) == ("completed", "one two")

        await say(talk, "weather")
        await talk.response.create(response={"tools": [TOOL]})
        response, _, _ = await response_of(talk)
        [call] = response.output
        assert json.loads(call.arguments) == {"city": "Oslo"}
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        await talk.conversation.item.create(item=result)
        await talk.response.create(response={"tools": [TOOL]})
        assert (await response_of(talk))[1] == "It rains."

        await talk.session.update(session={"type": "realtime", "output_modalities": ["audio"]})
        await talk.input_audio_buffer.append(audio=base64.b64encode(speech()).decode())
        await talk.input_audio_buffer.commit()
        await talk.response.create()
        response, text, sound = await response_of(talk)
        assert (response.status, text) == ("completed", "I heard you well.")
        assert len(sound) > 4800


def test_the_openai_client_types_calls_and_speaks(address: str) -> None:
    asyncio.run(asyncio.wait_for(converse(address), 60))


async def converse_with_models(address: str) -> None:
    async with client_of(address).realtime.connect(model="smollm2") as talk:
        session: Any = {
            "type": "realtime",
            "instructions": "Answer in one short sentence.",
            "output_modalities": ["text"],
            "max_output_tokens": 48,
            "temperature": 0,
            "audio": {"input": {"transcription": {"language": "en"}}},
        }
        await talk.session.update(session=session)
        await say(talk, "What is the capital of France?")
        await talk.response.create()
        response, text, _ = await response_of(talk)
        assert "Paris" in text
        assert response.usage.output_tokens > 0

        await say(talk, "Look how the weather is in Oslo.")
        choice: Any = {"type": "function", "name": "look"}
        await talk.response.create(
            response={"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False}
        )
        [call] = (await response_of(talk))[0].output
        assert call.name == "look"
        assert isinstance(json.loads(call.arguments)["city"], str)
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
        await talk.conversation.item.create(item=output)

        await talk.session.update(session={"type": "realtime", "output_modalities": ["audio"]})
        data = speech()
        for start in range(0, len(data), 4800):
            await talk.input_audio_buffer.append(audio=base64.b64encode(data[start : start + 4800]).decode())
        await talk.input_audio_buffer.commit()
        await talk.response.create()
        heard = ""
        async for event in talk:
            if event.type == "conversation.item.input_audio_transcription.completed":
                heard = event.transcript
                break
        assert "quick brown fox" in heard
        response, text, sound = await response_of(talk)
        assert response.status in ("completed", "incomplete")
        assert text
        assert len(sound) > 4800
        assert response.usage.output_token_details.audio_tokens > 0


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(900)
def test_real_models_hear_answer_and_speak(demo_model: Path, whisper_base: Path, tmp_path: Path) -> None:
    """Whisper base hears, SmolLM2 answers, and a tiny Soprano of random weights speaks."""
    write_model(tmp_path / "soprano-tiny")
    models = (str(demo_model), str(whisper_base), str(tmp_path / "soprano-tiny"))
    home = tmp_path / "home"
    home.mkdir()
    ready = r"soprano-tiny is ready after"
    with running_server(home, *models, "--served-model-name", "smollm2", ready=ready) as address:
        asyncio.run(asyncio.wait_for(converse_with_models(address), 600))
