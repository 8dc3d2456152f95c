"""What the Responses and Messages dialects put on the wire, byte by byte, and that the vendors' types take it."""

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.api.dialects.golden import FOLDER, SPOKEN, drawn, streamed, whole
from tests.api.golden_events import SEQUENCES

if TYPE_CHECKING:
    from pydantic import TypeAdapter


# The vendors' types take seconds to import, and every process that collects this file would.
@cache
def events() -> "dict[str, TypeAdapter[Any]]":
    from anthropic.types import RawMessageStreamEvent
    from google.genai.types import GenerateContentResponse
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    return {
        "responses": TypeAdapter(ResponseStreamEvent),
        "messages": TypeAdapter(RawMessageStreamEvent),
        "gemini": TypeAdapter(GenerateContentResponse),
    }


@cache
def answers() -> "dict[str, TypeAdapter[Any]]":
    from anthropic.types import Message
    from google.genai.types import GenerateContentResponse
    from openai.types.responses import Response
    from pydantic import TypeAdapter

    return {
        "responses": TypeAdapter(Response),
        "messages": TypeAdapter(Message),
        "gemini": TypeAdapter(GenerateContentResponse),
    }


def payloads(stream: bytes) -> list[dict[str, Any]]:
    lines = [line for line in stream.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("name", SPOKEN)
def test_frames_are_as_they_were(name: str, sequence: str) -> None:
    assert drawn(name, SEQUENCES[sequence]) == (FOLDER / name / f"{sequence}.txt").read_text()


@pytest.mark.parametrize("name", SPOKEN)
def test_no_golden_file_is_left_over(name: str) -> None:
    assert {path.stem for path in (FOLDER / name).iterdir()} == set(SEQUENCES)


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("name", SPOKEN)
def test_the_vendors_types_take_every_event(name: str, sequence: str) -> None:
    for payload in payloads(streamed(name, SEQUENCES[sequence])):
        if payload.get("type") not in ("ping", "error") and "error" not in payload:
            events()[name].validate_python(payload)


@pytest.mark.parametrize("sequence", [name for name in SEQUENCES if not name.startswith("fails")])
@pytest.mark.parametrize("name", SPOKEN)
def test_the_vendors_types_take_the_whole_answer(name: str, sequence: str) -> None:
    answers()[name].validate_json(whole(name, SEQUENCES[sequence]))


@pytest.mark.parametrize("sequence", [name for name in SEQUENCES if not name.startswith("fails")])
@pytest.mark.parametrize("name", SPOKEN)
def test_the_whole_answer_is_the_struct_that_the_document_shows(name: str, sequence: str) -> None:
    answer, sent = SPOKEN[name][0].answer, whole(name, SEQUENCES[sequence])
    assert answer is not None
    assert msgspec.json.encode(msgspec.json.decode(sent, type=answer)) == sent
