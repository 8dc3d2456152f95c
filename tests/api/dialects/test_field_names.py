"""Refusals name a field as the client wrote it, also those of the service, of media and of the engines."""

import asyncio
import json
from typing import Any

import pytest

from pippin.core.conversation import Audio, Image, Missing, ToolResult, Video
from pippin.core.errors import ErrorReport, FieldName, renamed
from pippin.core.events import Accepted, Failed
from pippin.core.tasks import Generate
from tests.api.fakes import MODEL, FakeRun, FakeService, application, client_of

Body = dict[str, Any]
REFUSED = "ftp://a.example/i.png"
SCHEMA: Body = {"type": "object"}
CALLED = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
]


def said(*parts: Body) -> list[Body]:
    return [{"role": "user", "content": list(parts)}]


def picture(url: str = REFUSED) -> Body:
    return {"type": "image_url", "image_url": {"url": url}}


def shown(url: str = REFUSED) -> Body:
    return {"type": "input_image", "image_url": url}


def contents(*parts: Body) -> Body:
    return {"contents": [{"parts": list(parts)}]}


def file(url: str = REFUSED) -> Body:
    return {"fileData": {"fileUri": url, "mimeType": "image/png"}}


def block(url: str = REFUSED) -> Body:
    return {"type": "image", "source": {"type": "url", "url": url}}


TEXT, INPUT_TEXT = {"type": "text", "text": "What?"}, {"type": "input_text", "text": "What?"}
CHAT, RESPONSES, MESSAGES, COMPLETIONS = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/completions",
)
GEMINI = f"/v1beta/models/{MODEL.id}:generateContent"
OLLAMA_CHAT, OLLAMA_GENERATE = "/api/chat", "/api/generate"

MEDIA: list[tuple[str, Body, str]] = [
    (CHAT, {"messages": said(TEXT, picture())}, "messages[0].content[1]"),
    (
        CHAT,
        {"messages": said({"type": "video_url", "video_url": {"url": REFUSED}})},
        "messages[0].content[0]",
    ),
    (
        CHAT,
        {"messages": said({"type": "audio_url", "audio_url": {"url": REFUSED}})},
        "messages[0].content[0]",
    ),
    (
        CHAT,
        {"messages": [*CALLED, {"role": "tool", "tool_call_id": "c", "content": [TEXT, picture()]}]},
        "messages[2].content[1]",
    ),
    (RESPONSES, {"input": said(shown())}, "input[0].content[0]"),
    (RESPONSES, {"input": said(INPUT_TEXT, shown()), "instructions": "Be brief."}, "input[0].content[1]"),
    (RESPONSES, {"input": said({"type": "video_url", "video_url": REFUSED})}, "input[0].content[0]"),
    (
        RESPONSES,
        {
            "input": [
                {"role": "user", "content": "Look."},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": [shown()]},
            ]
        },
        "input[2].output[0]",
    ),
    (GEMINI, contents({"text": "What?"}, file()), "contents[0].parts[1]"),
    (
        GEMINI,
        contents({"functionResponse": {"name": "f", "response": {"tool": 1}, "parts": [file()]}}),
        "contents[0].parts[0].functionResponse.parts[0]",
    ),
    (MESSAGES, {"messages": said(block())}, "messages[0].content[0]"),
    (MESSAGES, {"messages": [*said(TEXT), *said(TEXT, block())], "system": "Hi"}, "messages[1].content[1]"),
    (
        MESSAGES,
        {"messages": said({"type": "tool_result", "tool_use_id": "t", "content": [TEXT, block()]})},
        "messages[0].content[0].content[1]",
    ),
]

# A refusal for good would end these conversations: whoever prepares them is told what is missing.
OF_TOOLS = [case for case in MEDIA if "tool" in str(case[1]) or "function_call" in str(case[1])]

LATER: list[tuple[str, Body, str, str]] = [
    # What the service or an engine names, and what it is in the client's words.
    (COMPLETIONS, {"prompt": "Hi"}, "messages", "prompt"),
    (CHAT, {"messages": said(TEXT)}, "messages[0]", "messages[0]"),
    (CHAT, {"messages": said(TEXT), "max_tokens": 9}, "max_tokens", "max_tokens"),
    (CHAT, {"messages": said(TEXT), "max_completion_tokens": 9}, "max_tokens", "max_completion_tokens"),
    (CHAT, {"messages": said(TEXT), "guided_json": SCHEMA}, "response_format.not", "guided_json.not"),
    (
        CHAT,
        {
            "messages": said(TEXT),
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        },
        "response_format.not",
        "response_format.json_schema.schema.not",
    ),
    (RESPONSES, {"input": "Hi"}, "messages", "input"),
    (RESPONSES, {"input": "Hi"}, "messages[1].content[0]", "input"),
    (RESPONSES, {"input": "Hi", "max_output_tokens": 9}, "max_tokens", "max_output_tokens"),
    (RESPONSES, {"input": "Hi", "top_logprobs": 2}, "logprobs", "top_logprobs"),
    (
        RESPONSES,
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        "response_format.properties.a",
        "text.format.schema.properties.a",
    ),
    (MESSAGES, {"messages": said(TEXT), "system": "Hi"}, "messages", "messages"),
    (
        MESSAGES,
        {"messages": said(TEXT), "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "response_format",
        "output_config.format.schema",
    ),
    (GEMINI, contents({"text": "Hi"}), "messages[0].content[0]", "contents"),
    (GEMINI, contents({"text": "Hi"}), "max_tokens", "generationConfig.maxOutputTokens"),
    (
        GEMINI,
        contents({"text": "Hi"}) | {"generationConfig": {"responseJsonSchema": SCHEMA}},
        "response_format.not",
        "generationConfig.responseJsonSchema.not",
    ),
    (COMPLETIONS, {"prompt": "Hi"}, "prompt", "prompt"),
    (COMPLETIONS, {"prompt": "Hi", "guided_regex": "a"}, "response_format", "guided_regex"),
]


async def reply_to(path: str, body: Body, service: FakeService) -> Body:
    own = {"max_tokens": 9} if path == MESSAGES else {}
    async with client_of(application(service, media_fetch=True)) as client:
        reply = await client.post(path, json={"model": MODEL.id, **own, **body})
    assert reply.status_code == 400, reply.text
    error: Body = reply.json()["error"]
    return error


def param_of(path: str, error: Body) -> str:
    """Anthropic's errors have no field for it: there it opens the sentence."""
    if path == MESSAGES:
        return str(error["message"].split(" ")[0].strip("'`"))
    if path == GEMINI:
        error |= {"param": error["details"][0]["fieldViolations"][0]["field"]}
    assert error["message"].split(" ")[0].strip("'`") == error["param"]
    return str(error["param"])


@pytest.mark.parametrize(("path", "body", "field"), [case for case in MEDIA if case not in OF_TOOLS])
def test_a_refused_medium_is_named_as_it_was_sent(path: str, body: Body, field: str) -> None:
    service = FakeService()
    error = asyncio.run(reply_to(path, body, service))
    assert param_of(path, error) == field
    assert not service.runs


@pytest.mark.parametrize(("path", "body", "field"), OF_TOOLS)
def test_a_medium_of_a_tool_that_can_not_be_had_is_missing(path: str, body: Body, field: str) -> None:
    async def main() -> FakeService:
        service, own = FakeService(), {"max_tokens": 9} if path == MESSAGES else {}
        async with client_of(application(service, media_fetch=True)) as client:
            reply = await client.post(path, json={"model": MODEL.id, **own, **body})
            assert reply.status_code == 200, reply.text
        return service

    [found] = media_of(asyncio.run(main()))
    assert isinstance(found.source, Missing)
    assert found.source.report.param == field


def media_of(service: FakeService) -> list[Image | Audio | Video]:
    task = service.runs[0].task
    assert isinstance(task, Generate)
    parts = [part for message in task.request.messages or () for part in message.parts]
    for part in list(parts):
        parts += part.parts if isinstance(part, ToolResult) else ()
    return [part for part in parts if isinstance(part, Image | Audio | Video)]


@pytest.mark.parametrize(("path", "body", "field"), MEDIA)
def test_the_place_of_a_medium_goes_to_the_engine(path: str, body: Body, field: str) -> None:
    """Which names it when it can't be decoded."""

    async def main() -> str:
        service = FakeService()
        sent = json.loads(json.dumps(body).replace(REFUSED, "data:image/png;base64,AAAA"))
        own = {"max_tokens": 9} if path == MESSAGES else {}
        if path == MESSAGES:
            sent = json.loads(
                json.dumps(sent).replace(
                    '{"type": "url", "url": "data:image/png;base64,AAAA"}',
                    '{"type": "base64", "media_type": "image/png", "data": "AAAA"}',
                )
            )
        async with client_of(application(service)) as client:
            reply = await client.post(path, json={"model": MODEL.id, **own, **sent})
            assert reply.status_code == 200, reply.text
        [found] = [part.field for part in media_of(service)]
        return found

    assert asyncio.run(main()) == field


@pytest.mark.parametrize(("path", "body", "own", "field"), LATER)
def test_a_later_refusal_names_what_the_client_wrote(path: str, body: Body, own: str, field: str) -> None:
    told = ErrorReport(kind="invalid_request", message=f"'{own}' is too much.", param=own)
    refusing = FakeService()
    refusing.refusal = told
    assert param_of(path, asyncio.run(reply_to(path, body, refusing))) == field
    # And where it comes after the request was accepted.
    failing = FakeService([Accepted(3), Failed(told)])
    assert param_of(path, asyncio.run(reply_to(path, body, failing))) == field


@pytest.mark.parametrize("late", [False, True])
def test_of_several_prompts_the_one_is_named_that_was_refused(late: bool) -> None:
    told = ErrorReport(kind="invalid_request", message="Your prompt is too long.", param="prompt")

    class Refusing(FakeService):
        async def start(self, task: Any, **named: Any) -> FakeRun:
            if task.request.prompt == "Hi":
                return await super().start(task, **named)
            other = FakeService([Accepted(3), Failed(told)])
            other.refusal = None if late else told
            return await other.start(task, **named)

    error = asyncio.run(reply_to(COMPLETIONS, {"prompt": ["Hi", "Ho"]}, Refusing()))
    assert error["param"] == "prompt[1]"
    assert error["message"] == "Your prompt[1] is too long."


@pytest.mark.parametrize("streamed", [False, True])
def test_ollama_s_refusals_say_it_in_their_sentence(streamed: bool) -> None:
    async def main(path: str, body: Body, own: str) -> str:
        service = FakeService()
        service.refusal = ErrorReport(kind="invalid_request", message=f"{own} is too much.", param=own)
        async with client_of(application(service)) as client:
            reply = await client.post(path, json={"model": MODEL.id, "stream": streamed, **body})
        return str(reply.json()["error"])

    limited = {"options": {"num_predict": 9}}
    assert "options.num_predict is" in asyncio.run(
        main(OLLAMA_CHAT, {"messages": said_plainly(), **limited}, "max_tokens")
    )
    assert "prompt is" in asyncio.run(main(OLLAMA_GENERATE, {"prompt": "Hi"}, "messages[0].content[0]"))
    assert "format.not is" in asyncio.run(
        main(OLLAMA_GENERATE, {"prompt": "Hi", "format": SCHEMA}, "response_format.not")
    )


def said_plainly() -> list[Body]:
    return [{"role": "user", "content": "Hi"}]


def test_words_that_are_no_fields_stay() -> None:
    names = (FieldName("messages", "input"),)
    told = ErrorReport(
        kind="invalid_request",
        message="'messages' are too long: your messages resulted in 9 tokens, reduce the length of the messages. "
        "'messages[2].content[1]' is one; send them in messages of the user.",
        param="messages[2].content[1]",
    )
    assert renamed(told, names).message == (
        "'input' are too long: your input resulted in 9 tokens, reduce the length of the input. "
        "'input' is one; send them in messages of the user."
    )
    other = ErrorReport(kind="invalid_request", message="messages_of is a name.", param="messages_of")
    assert renamed(other, names) == other
