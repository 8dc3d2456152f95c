"""The cases of the Open Responses compliance suite, by their names there, against the types of its specification.

They are those of `src/lib/compliance-tests.ts` in https://github.com/openresponses/openresponses, for version
2026-04-24 of the specification. Where `response-output-phase-schema` sends nothing there and holds an answer of its own
against the types, the answer is one of the server's here, with the phases in it.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import httpx
import openresponses_types as types
from pydantic import BaseModel, TypeAdapter
from websockets.sync.client import ClientConnection, connect

ADDRESS, MODEL = sys.argv[1], sys.argv[2]
SECONDS: Final = 300
ENDINGS: Final = ("response.completed", "response.failed", "response.incomplete", "error")
EVENTS: Final[dict[str, TypeAdapter[Any]]] = {
    next(iter(kind.model_fields["type"].annotation)).value: TypeAdapter(kind)  # type: ignore[arg-type, union-attr]
    for kind in vars(types).values()
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__name__.endswith("StreamingEvent")
}
RED_SQUARE: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR4nGM4IaKB"
    "FTEMLQkAjj9BAfO9170AAAAASUVORK5CYII="
)
WEATHER: Final = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state"}},
        "required": ["location"],
    },
}

Turn = dict[str, Any]
client = httpx.Client(base_url=f"{ADDRESS}/v1", headers={"authorization": "Bearer none"}, timeout=SECONDS)


def message(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **fields}


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    types.ResponseResource.model_validate(answer)
    return answer


def completed(answer: dict[str, Any], *, output: bool = True) -> dict[str, Any]:
    assert checked(answer)["status"] == "completed", answer
    assert answer["output"] or not output, answer
    return answer


def whole(input: Any, **fields: Any) -> dict[str, Any]:
    reply = client.post("/responses", json={"model": MODEL, "input": input, **fields})
    assert reply.status_code == 200, reply.text
    return checked(reply.json())


def validated(event: dict[str, Any]) -> dict[str, Any]:
    EVENTS[event["type"]].validate_python(event)
    return event


def socket() -> ClientConnection:
    address = f"{ADDRESS.replace('http', 'ws', 1)}/v1/responses"
    return connect(address, additional_headers={"authorization": "Bearer none"}, open_timeout=SECONDS)


def turn(on: ClientConnection, input: Any, **fields: Any) -> Turn:
    """The event that ends a turn; those before it are validated."""
    on.send(json.dumps({"type": "response.create", "model": MODEL, "input": input, **fields}))
    while (event := json.loads(on.recv(timeout=SECONDS)))["type"] not in ENDINGS:
        validated(event)
    if event["type"] != "error":  # over a WebSocket it has a status in place of its number
        validated(event)
    return dict(event)


def refused(ending: Turn) -> str | None:
    assert ending["type"] == "error", ending
    return str(ending["error"]["code"])


def basic_response() -> None:
    completed(whole([message("user", "Say hello in exactly 3 words.")]))


def assistant_phase() -> None:
    said = [
        message("assistant", "I should answer with the saved number.", phase="commentary"),
        message("assistant", "The number is four.", phase="final_answer"),
    ]
    completed(whole([*said, message("user", "Repeat only the number.")]))


def response_output_phase_schema() -> None:
    answer = whole([message("user", "Say one word.")])
    [said] = [item for item in answer["output"] if item["type"] == "message"]
    phases = ["commentary", "final_answer"]
    labelled = types.ResponseResource.model_validate(
        answer | {"output": [said | {"phase": phase} for phase in phases]}
    )
    read = labelled.model_dump(mode="json")["output"]
    assert [item["phase"] for item in read] == phases


def streaming_response() -> None:
    asked = {"model": MODEL, "input": [message("user", "Count from 1 to 5.")], "stream": True}
    with client.stream("POST", "/responses", json=asked) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
    events = [validated(json.loads(line)) for line in lines if line != "[DONE]"]
    completed(events[-1]["response"], output=False)


def system_prompt() -> None:
    pirate = message("system", "You are a pirate. Always respond in pirate speak.")
    completed(whole([pirate, message("user", "Say hello.")]))


def tool_calling() -> None:
    answer = whole([message("user", "What's the weather like in San Francisco?")], tools=[WEATHER])
    assert any(item["type"] == "function_call" for item in answer["output"]), answer


def image_input() -> None:
    shown = [
        {"type": "input_text", "text": "What do you see in this image? Answer in one sentence."},
        {"type": "input_image", "image_url": RED_SQUARE},
    ]
    completed(whole([message("user", shown)]))


def multi_turn() -> None:
    said = [message("user", "My name is Alice."), message("assistant", "Hello Alice! Nice to meet you.")]
    completed(whole([*said, message("user", "What is my name?")]))


def compacted() -> list[Any]:
    said = [message("user", "We launch on Tuesday."), message("assistant", "Understood.")]
    asked = {"model": MODEL, "prompt_cache_key": "open-responses", "input": said}
    reply = client.post("/responses/compact", json=asked)
    assert reply.status_code == 200, reply.text
    found = types.CompactResource.model_validate(reply.json())
    assert found.object.value == "response.compaction"
    return list(reply.json()["output"])


def compact_response() -> None:
    assert any(item["type"] == "compaction" for item in compacted())


def compact_missing_model() -> None:
    reply = client.post("/responses/compact", json={"input": [message("user", "Compact this conversation.")]})
    assert reply.status_code in (400, 422), reply.text


def websocket_response() -> None:
    with socket() as on:
        completed(turn(on, [message("user", "Count from 1 to 3.")])["response"], output=False)


def websocket_sequential_responses() -> None:
    with socket() as on:
        for number in ("first", "second"):
            ending = turn(on, f"Reply with exactly: {number}", store=False)
            completed(ending["response"], output=False)


def websocket_continuation() -> None:
    with socket() as on:
        first = turn(on, "Remember the code word: cobalt. Reply with OK.", store=False)["response"]
        asked = "What is the code word? Reply with only the code word."
        second = turn(on, asked, previous_response_id=first["id"], store=False)
    completed(second["response"], output=False)


def websocket_reconnect_store_false_recovery() -> None:
    with socket() as on:
        first = turn(on, "Remember the code word: copper. Reply with OK.", store=False)["response"]
    with socket() as on:
        lost = turn(on, "Try to continue.", previous_response_id=first["id"], store=False)
        assert refused(lost) == "previous_response_not_found"
        recovered = turn(on, [message("user", "Reply with exactly: recovered")], store=False)
    completed(recovered["response"], output=False)


def websocket_previous_response_not_found() -> None:
    with socket() as on:
        unknown = f"resp_openresponses_missing_{time.time_ns()}"
        lost = turn(on, "This should fail.", previous_response_id=unknown, store=False)
    assert refused(lost) == "previous_response_not_found"


def websocket_failed_continuation_evicts_cache() -> None:
    output = {"type": "function_call_output", "call_id": "call_openresponses_missing", "output": "Nothing."}
    with socket() as on:
        first = turn(on, "Remember the code word: ember. Reply with OK.", store=False)["response"]
        refused(turn(on, [output], previous_response_id=first["id"], store=False))
        stale = turn(on, "Try to continue.", previous_response_id=first["id"], store=False)
    assert refused(stale) == "previous_response_not_found"


def websocket_compact_new_chain() -> None:
    with socket() as on:
        asked = [*compacted(), message("user", "Continue from here. Reply with exactly: compacted")]
        completed(turn(on, asked, store=False, tools=[])["response"], output=False)


CASES: Final[tuple[Callable[[], None], ...]] = (
    basic_response,
    assistant_phase,
    response_output_phase_schema,
    streaming_response,
    system_prompt,
    tool_calling,
    image_input,
    multi_turn,
    compact_response,
    compact_missing_model,
    websocket_response,
    websocket_sequential_responses,
    websocket_continuation,
    websocket_reconnect_store_false_recovery,
    websocket_previous_response_not_found,
    websocket_failed_continuation_evicts_cache,
    websocket_compact_new_chain,
)

for case in CASES:
    if case.__name__ not in sys.argv[3:]:
        case()
        print(case.__name__, "passed")
