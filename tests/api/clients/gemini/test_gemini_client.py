"""The real `google-genai` client over a socket against a worker that plays a script, and requests as `curl` has."""

import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import msgspec
import pytest
from google import genai
from google.genai import errors, types
from pydantic import BaseModel

from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.gemini.dialect import GeminiDialect
from pippin.core.errors import ErrorReport
from pippin.core.events import Accepted, PartDelta, PartStarted
from tests.api.dialects.golden import RUN
from tests.api.live_server import MODEL, live_server

SCRIPT: Final[dict[str, Any]] = {
    "rules": [
        {"when": {"tool_result": "rain"}, "say": "It rains."},
        {
            "when": {"user": "weather"},
            "say": "I look.",
            "calls": [
                {"name": "look", "arguments": {"city": "Oslo"}},
                {"name": "look", "arguments": {"city": "Rome"}},
            ],
        },
        {"when": {"user": "ponder"}, "think": "Well, well.", "say": "Four."},
        {"when": {"user": "json"}, "say": '{"name": "Ann", "age": 7}'},
        {"when": {"user": "break"}, "say": "one two three", "fault": {"kind": "error", "after": 2}},
        {"when": {"user": "long"}, "say": " ".join(["word"] * 400)},
        {"when": {"system": "pirate"}, "say": "Arr."},
    ]
}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(tmp_path_factory.mktemp("live"), SCRIPT) as found:
        yield found


def client_at(address: str, version: str = "v1", key: str = "none") -> genai.Client:
    return genai.Client(
        api_key=key, http_options=types.HttpOptions(base_url=address, api_version=version, timeout=30_000)
    )


@pytest.fixture(scope="module", params=["v1", "v1beta"])
def client(address: str, request: pytest.FixtureRequest) -> genai.Client:
    return client_at(address, request.param)


def config(**fields: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(**fields)


def ask(client: genai.Client, contents: Any, **fields: Any) -> types.GenerateContentResponse:
    return client.models.generate_content(model=MODEL, contents=contents, config=config(**fields))


def post(address: str, method: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{address}/v1beta/models/{MODEL}:{method}", json=body, timeout=30)


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "parts": [{"text": text}]}]


class TestGenerate:
    def test_a_whole_answer_has_its_figures(self, client: genai.Client) -> None:
        reply = ask(client, "Hello there")
        assert reply.text == "Hello there"
        assert reply.model_version == MODEL
        assert reply.response_id
        assert reply.candidates is not None
        assert reply.candidates[0].finish_reason == types.FinishReason.STOP
        usage = reply.usage_metadata
        assert usage is not None
        assert usage.prompt_token_count
        assert usage.candidates_token_count
        assert usage.total_token_count == usage.prompt_token_count + usage.candidates_token_count

    def test_a_stream_gives_the_same_text_and_ends_once(self, client: genai.Client) -> None:
        pieces = list(
            client.models.generate_content_stream(model=MODEL, contents="one two three four", config=config())
        )
        assert "".join(piece.text or "" for piece in pieces) == "one two three four"
        reasons = [piece.candidates[0].finish_reason for piece in pieces if piece.candidates]
        assert reasons == [None] * (len(pieces) - 1) + [types.FinishReason.STOP]
        assert pieces[-1].usage_metadata
        assert pieces[-1].usage_metadata.candidates_token_count

    def test_a_streamed_chat_keeps_its_history(self, client: genai.Client) -> None:
        chat = client.chats.create(model=MODEL)
        first = "".join(piece.text or "" for piece in chat.send_message_stream("one two three"))
        assert first == "one two three"
        assert chat.send_message("Go on").text == "Go on"
        roles = [content.role for content in chat.get_history(curated=True)]
        assert roles[0] == "user"
        assert set(roles[1:-2]) == {"model"}
        assert roles[-2:] == ["user", "model"]

    def test_the_system_instruction_is_heard(self, client: genai.Client) -> None:
        assert ask(client, "Hi", system_instruction="You are a pirate.").text == "Arr."

    def test_a_limit_ends_the_answer(self, client: genai.Client) -> None:
        reply = ask(client, "long", max_output_tokens=5)
        assert reply.candidates is not None
        assert reply.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS

    def test_a_stop_sequence_ends_the_answer(self, client: genai.Client) -> None:
        assert ask(client, "one two three", stop_sequences=["three"]).text == "one two "

    def test_candidates_are_as_many_as_asked_for(self, client: genai.Client) -> None:
        reply = ask(client, "Hello", candidate_count=2, temperature=0.0, top_p=0.9, top_k=40, seed=3)
        assert reply.candidates is not None
        assert [candidate.index for candidate in reply.candidates] == [0, 1]

    def test_log_probabilities_have_their_shape(self, client: genai.Client) -> None:
        reply = ask(client, "Hello there", response_logprobs=True, logprobs=2)
        assert reply.candidates is not None
        found = reply.candidates[0].logprobs_result
        assert found is not None
        assert found.chosen_candidates is not None
        assert "".join(each.token or "" for each in found.chosen_candidates) == "Hello there"
        assert len(found.top_candidates or ()) == len(found.chosen_candidates)
        assert reply.candidates[0].avg_logprobs is not None

    def test_a_schema_gives_the_pydantic_object(self, client: genai.Client) -> None:
        reply = ask(client, "json", response_mime_type="application/json", response_schema=Person)
        assert reply.parsed == Person(name="Ann", age=7)

    def test_thoughts_are_shown_where_they_are_wanted(self, client: genai.Client) -> None:
        shown = ask(client, "ponder", thinking_config=types.ThinkingConfig(include_thoughts=True))
        assert shown.parts is not None
        assert [(part.text, part.thought) for part in shown.parts] == [("Well, well.", True), ("Four.", None)]
        assert shown.usage_metadata is not None
        assert shown.usage_metadata.thoughts_token_count
        hidden = ask(client, "ponder")
        assert hidden.parts is not None
        assert [part.text for part in hidden.parts] == ["Four."]
        assert hidden.parts[0].thought_signature

    def test_a_name_of_the_vendor_s_means_the_served_model(self, client: genai.Client) -> None:
        reply = client.models.generate_content(model="gemini-3-pro", contents="Hello")
        assert (reply.text, reply.model_version) == ("Hello", MODEL)


class TestTools:
    def test_a_function_is_called_by_the_client_s_own_runner(self, client: genai.Client) -> None:
        asked: list[str] = []

        def look(city: str) -> str:
            """Looks at the weather of a city."""
            asked.append(city)
            return "rain"

        reply = ask(client, "weather", tools=[look])
        assert asked == ["Oslo", "Rome"]
        assert reply.text == "It rains."

    @pytest.mark.parametrize("streamed", [False, True])
    def test_calls_are_parts_with_their_arguments(self, client: genai.Client, streamed: bool) -> None:
        declared = types.FunctionDeclaration(
            name="look",
            parameters=types.Schema(
                type=types.Type.OBJECT, properties={"city": types.Schema(type=types.Type.STRING)}
            ),
        )
        tools = config(tools=[types.Tool(function_declarations=[declared])])
        if streamed:
            pieces = list(
                client.models.generate_content_stream(model=MODEL, contents="weather", config=tools)
            )
        else:
            pieces = [client.models.generate_content(model=MODEL, contents="weather", config=tools)]
        calls = [call for piece in pieces for call in piece.function_calls or ()]
        assert [call.args for call in calls] == [{"city": "Oslo"}, {"city": "Rome"}]
        assert len({call.id for call in calls}) == 2


class TestOthers:
    def test_tokens_are_counted(self, client: genai.Client) -> None:
        counted = client.models.count_tokens(model=MODEL, contents="one two three four")
        usage = ask(client, "one two three four").usage_metadata
        assert usage is not None
        assert counted.total_tokens == usage.prompt_token_count

    def test_models_are_listed_and_found(self, client: genai.Client) -> None:
        assert [model.name for model in client.models.list()] == [f"models/{MODEL}"]
        found = client.models.get(model=MODEL)
        assert found.name == f"models/{MODEL}"
        assert "generateContent" in (found.supported_actions or ())

    @pytest.mark.parametrize("streamed", [False, True])
    def test_an_error_has_google_s_words(self, client: genai.Client, streamed: bool) -> None:
        with pytest.raises(errors.ClientError) as raised:
            if streamed:
                list(client.models.generate_content_stream(model="none", contents="Hi"))
            else:
                client.models.generate_content(model="none", contents="Hi")
        assert (raised.value.code, raised.value.status) == (404, "NOT_FOUND")


class TestWire:
    """As `curl` has it."""

    def test_without_alt_a_stream_is_an_array(self, address: str) -> None:
        reply = post(address, "streamGenerateContent", contents=said("one two three"))
        assert reply.headers["content-type"] == "application/json"
        pieces = reply.json()
        text = "".join(piece["candidates"][0]["content"]["parts"][0]["text"] for piece in pieces)
        assert text == "one two three"

    def test_either_spelling_of_fields_is_read(self, address: str) -> None:
        body = {
            "contents": {"parts": {"text": "Hi"}},
            "system_instruction": {"parts": {"text": "You are a pirate."}},
            "generation_config": {"max_output_tokens": 5},
            "safety_settings": [],
        }
        assert post(address, "generateContent", **body).json()["candidates"][0]["content"]["parts"] == [
            {"text": "Arr."}
        ]

    def test_a_response_format_is_that_of_its_schema(self, address: str) -> None:
        schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
        for mime in ("application/json", "APPLICATION_JSON"):
            wanted = {"responseFormat": [{"text": {"mimeType": mime, "schema": schema}}]}
            reply = post(address, "generateContent", contents=said("Hello"), generationConfig=wanted).json()
            assert json.loads(reply["candidates"][0]["content"]["parts"][0]["text"]).keys() == {"sum"}
        wanted = {"responseFormat": [{"image": {"aspectRatio": "1:1"}}]}
        refused = post(address, "generateContent", contents=said("Hello"), generationConfig=wanted)
        assert "generationConfig.responseFormat[0].image" in refused.json()["error"]["message"]

    def test_names_may_be_escaped(self, address: str) -> None:
        name = MODEL.replace("/", "%2F")
        reply = httpx.post(
            f"{address}/v1beta/models/{name}:generateContent", json={"contents": said("Hi")}, timeout=30
        )
        assert reply.json()["modelVersion"] == MODEL

    def test_at_v1_the_list_without_google_s_key_is_openai_s(self, address: str) -> None:
        assert httpx.get(f"{address}/v1/models").json()["object"] == "list"
        assert httpx.get(f"{address}/v1/models?key=none").json()["models"]
        assert httpx.get(f"{address}/v1/models", headers={"x-goog-api-key": "none"}).json()["models"]

    def test_a_refusal_names_its_field(self, address: str) -> None:
        reply = post(address, "generateContent", contents=said("Hi"), cached_content="cachedContents/1")
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
        assert error["details"][0]["fieldViolations"][0]["field"] == "cachedContent"

    @pytest.mark.parametrize("path", ["/v1beta/files", "/v1beta/models/x:predict", "/v1/models/x:predict"])
    def test_what_is_not_here_is_told_in_google_s_form(self, address: str, path: str) -> None:
        reply = httpx.post(address + path, json={})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["status"]) == (404, 404, "NOT_FOUND")


def test_a_stream_that_fails_ends_with_its_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    with live_server(tmp_path_factory.mktemp("breaks"), SCRIPT) as address:
        client = client_at(address)
        with pytest.raises(errors.ServerError) as raised:
            list(client.models.generate_content_stream(model=MODEL, contents="break"))
        assert raised.value.status == "INTERNAL"


@pytest.mark.parametrize("text", ["", "one"])
def test_an_array_that_fails_ends_with_the_error(text: str) -> None:
    body = msgspec.json.encode({"contents": said("Hi")})
    dialect = GeminiDialect("array")
    encoder = dialect.encoder(dialect.decode(body, DecodeContext()).shape, RUN)
    drawn = encoder.start([Accepted(prompt_tokens=1)]) + encoder.keep_alive()
    if text:
        drawn += encoder.event(PartStarted(0, 0, "text")) + encoder.event(PartDelta(0, 0, text))
    pieces = json.loads(
        drawn + encoder.failed(ErrorReport(kind="overloaded", message="Full.")) + encoder.end()
    )
    assert len(pieces) == 1 + bool(text)
    assert pieces[-1]["error"]["status"] == "UNAVAILABLE"


def test_keys_are_shown_as_google_s_clients_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    with live_server(tmp_path_factory.mktemp("keys"), SCRIPT, api_keys=("secret",)) as address:
        known, stranger = client_at(address, key="secret"), client_at(address, key="wrong")
        assert ask(known, "Hello").text == "Hello"
        with pytest.raises(errors.ClientError) as raised:
            ask(stranger, "Hello")
        assert (raised.value.code, raised.value.status) == (401, "UNAUTHENTICATED")
        url = f"{address}/v1beta/models/{MODEL}:generateContent"
        assert httpx.post(f"{url}?key=secret", json={"contents": said("Hi")}).status_code == 200
        assert httpx.post(f"{url}?key=wrong", json={"contents": said("Hi")}).status_code == 401
        assert httpx.get(f"{address}/v1/models?key=secret").json()["models"]
        assert httpx.post(f"{address}/v1/chat/completions?key=secret", json={}).status_code == 401
