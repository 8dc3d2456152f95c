"""The real `ollama` client over a socket against a worker that plays a script, and requests as documents show them."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import ollama
import pytest

from pippin.api.dialects.ollama.dialect import OllamaChatDialect, OllamaGenerateDialect, OllamaOptions
from pippin.api.dialects.shared.fields import names_of
from pippin.api.routes.ollama import EMBED, EMBED_ONE
from tests.api.live_server import MODEL, live_server

PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
        "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
    )
).decode()
SCRIPT: dict[str, Any] = {
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
        {"when": {"user": "think"}, "think": "Well.", "say": "Four."},
        {"when": {"user": "json"}, "say": '{"name": "Ann", "age": 7}'},
        {"when": {"user": "break"}, "say": "one two three", "fault": {"kind": "error", "after": 2}},
        {"when": {"user": "long"}, "say": " ".join(["word"] * 400)},
        {"when": {"system": "pirate"}, "say": "Arr."},
        {"when": {"prompt": "raw"}, "say": "As it is."},
    ]
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(tmp_path_factory.mktemp("live"), SCRIPT) as found:
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[ollama.Client]:
    with ollama.Client(host=address) as made:
        yield made


def user(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **fields}


def post(address: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{address}{path}", json={"model": MODEL, **body}, timeout=30)


def lines_of(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.text.splitlines()]


class TestChat:
    def test_a_whole_answer_has_its_figures(self, client: ollama.Client) -> None:
        reply = client.chat(MODEL, [user("Hello there")])
        assert reply.message.content == "Hello there"
        assert reply.done
        assert reply.done_reason == "stop"
        assert reply.model == MODEL
        assert reply.prompt_eval_count
        assert reply.eval_count
        assert reply.total_duration

    def test_a_stream_gives_the_same_text_and_ends_once(self, client: ollama.Client) -> None:
        parts = list(client.chat(MODEL, [user("one two three four")], stream=True))
        assert "".join(part.message.content or "" for part in parts) == "one two three four"
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[-1].eval_count

    def test_streaming_is_what_happens_where_nothing_is_said(self, address: str) -> None:
        lines = lines_of(post(address, "/api/chat", messages=[user("one two")]))
        assert len(lines) > 1
        assert lines[-1]["done"]

    def test_the_tag_latest_means_the_model_itself_and_is_repeated(self, client: ollama.Client) -> None:
        reply = client.chat(f"{MODEL}:latest", [user("Hello")])
        assert reply.message.content == "Hello"
        assert reply.model == f"{MODEL}:latest"

    @pytest.mark.parametrize("stream", [False, True])
    def test_tools_are_called_with_arguments_as_objects(self, client: ollama.Client, stream: bool) -> None:
        given = client.chat(MODEL, [user("weather")], tools=[TOOL], stream=stream)  # type: ignore[call-overload]
        parts = list(given) if stream else [given]
        calls = [call for part in parts for call in part.message.tool_calls or ()]
        assert [call.function.arguments for call in calls] == [{"city": "Oslo"}, {"city": "Rome"}]
        assert "".join(part.message.content or "" for part in parts) == "I look."

    def test_a_result_by_name_belongs_to_the_call_of_that_name(self, client: ollama.Client) -> None:
        asked = client.chat(MODEL, [user("weather")], tools=[TOOL])
        results = [{"role": "tool", "tool_name": "look", "content": text} for text in ("sun", "rain")]
        reply = client.chat(MODEL, [user("weather"), asked.message, *results], tools=[TOOL])
        assert reply.message.content == "It rains."

    @pytest.mark.parametrize("stream", [False, True])
    def test_thinking_stands_apart(self, client: ollama.Client, stream: bool) -> None:
        given = client.chat(MODEL, [user("think")], think=True, stream=stream)  # type: ignore[call-overload]
        parts = list(given) if stream else [given]
        assert "".join(part.message.thinking or "" for part in parts) == "Well."
        assert "".join(part.message.content or "" for part in parts) == "Four."

    def test_thinking_can_be_switched_off(self, client: ollama.Client) -> None:
        reply = client.chat(MODEL, [user("think")], think=False)
        assert reply.message.thinking is None
        assert reply.message.content == "Four."

    @pytest.mark.parametrize("form", ["json", SCHEMA])
    def test_a_format_is_followed(self, client: ollama.Client, form: Any) -> None:
        reply = client.chat(MODEL, [user("json")], format=form)
        assert json.loads(reply.message.content or "") == {"name": "Ann", "age": 7}

    def test_images_are_given_as_base64(self, client: ollama.Client) -> None:
        reply = client.chat(MODEL, [user("What is this?", images=[PIXEL])])
        assert reply.message.content

    def test_options_limit_and_stop(self, client: ollama.Client) -> None:
        limited = client.chat(MODEL, [user("long")], options={"num_predict": 3})
        assert limited.done_reason == "length"
        assert limited.eval_count == 3
        stopped = client.chat(MODEL, [user("one two three")], options={"stop": ["three"]})
        assert stopped.message.content == "one two "

    def test_log_probabilities_are_given(self, address: str) -> None:
        body = post(address, "/api/chat", messages=[user("a b")], logprobs=True, top_logprobs=2, stream=False)
        [first, *_] = body.json()["logprobs"]
        assert first["logprob"] <= 0
        assert len(first["top_logprobs"]) == 2

    @pytest.mark.parametrize("think", [None, False])
    def test_a_stream_and_a_whole_answer_give_those_of_the_same_tokens(
        self, address: str, think: bool | None
    ) -> None:
        def tokens(*, stream: bool) -> list[str]:
            body = post(
                address, "/api/chat", messages=[user("think")], logprobs=True, think=think, stream=stream
            )
            lines = map(json.loads, body.text.splitlines())
            return [each["token"] for line in lines for each in line.get("logprobs", [])]

        assert tokens(stream=False) == tokens(stream=True)
        assert any("Four" in token for token in tokens(stream=True))

    def test_a_failing_stream_ends_in_an_error_that_the_client_raises(self, client: ollama.Client) -> None:
        with pytest.raises(ollama.ResponseError):
            list(client.chat(MODEL, [user("break")], stream=True))


class TestNumCtx:
    """`options.num_ctx` bounds prompt and answer together."""

    def test_a_conversation_that_is_longer_loses_its_oldest_turns(self, client: ollama.Client) -> None:
        turns = [user("old " * 60), {"role": "assistant", "content": "ok"}, user("new")]
        reply = client.chat(MODEL, turns, options={"num_ctx": 40})
        assert reply.message.content == "new"
        assert reply.prompt_eval_count is not None
        assert reply.prompt_eval_count < 40

    def test_the_answer_ends_where_the_context_does(self, client: ollama.Client) -> None:
        reply = client.chat(MODEL, [user("long")], options={"num_ctx": 64})
        assert reply.done_reason == "length"
        assert (reply.prompt_eval_count or 0) + (reply.eval_count or 0) == 64

    def test_a_larger_one_than_the_models_window_changes_nothing(self, client: ollama.Client) -> None:
        assert client.chat(MODEL, [user("Hello")], options={"num_ctx": 1 << 20}).message.content == "Hello"

    def test_truncate_false_refuses(self, address: str) -> None:
        turns = [user("old " * 60), {"role": "assistant", "content": "ok"}, user("new")]
        reply = post(address, "/api/chat", messages=turns, options={"num_ctx": 40}, truncate=False)
        assert reply.status_code == 400
        assert "40" in reply.json()["error"]


class TestGenerate:
    def test_a_prompt_is_answered(self, client: ollama.Client) -> None:
        reply = client.generate(MODEL, "Hello there")
        assert reply.response == "Hello there"
        assert reply.done_reason == "stop"

    def test_a_stream_gives_the_same_text(self, client: ollama.Client) -> None:
        parts = list(client.generate(MODEL, "one two three", stream=True))
        assert "".join(part.response for part in parts) == "one two three"
        assert parts[-1].done

    def test_a_system_message_stands_before_it(self, client: ollama.Client) -> None:
        assert client.generate(MODEL, "Hello", system="You are a pirate").response == "Arr."

    def test_a_raw_prompt_is_given_as_it_is(self, client: ollama.Client) -> None:
        assert client.generate(MODEL, "a raw prompt", raw=True).response == "As it is."

    @pytest.mark.parametrize("field", [{"raw": True}, {"suffix": "."}])
    def test_thinking_needs_the_template(self, address: str, field: dict[str, Any]) -> None:
        reply = post(address, "/api/generate", prompt="raw", think=True, **field)
        assert reply.status_code == 400
        assert "`think`" in reply.json()["error"]

    @pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
    def test_an_empty_one_loads_and_unloads_the_model(self, address: str, path: str) -> None:
        said = {"messages": []} if path.endswith("chat") else {}
        assert post(address, path, stream=False, **said).json()["done_reason"] == "load"
        assert [each["name"] for each in httpx.get(f"{address}/api/ps").json()["models"]] == [
            f"{MODEL}:latest"
        ]
        gone = post(address, path, stream=False, keep_alive=0, **said).json()
        assert gone["done_reason"] == "unload"
        assert httpx.get(f"{address}/api/ps").json()["models"] == []

    def test_the_old_form_of_a_conversation_is_refused_by_name(self, address: str) -> None:
        reply = post(address, "/api/generate", prompt="Hello", context=[1, 2, 3])
        assert reply.status_code == 400
        assert "`context`" in reply.json()["error"]


class TestModels:
    def test_the_models_are_listed_with_a_tag(self, client: ollama.Client) -> None:
        listed = {each.model: each for each in client.list().models}
        assert listed[f"{MODEL}:latest"].details is not None

    def test_a_model_is_shown_with_what_it_can(self, client: ollama.Client) -> None:
        client.chat(MODEL, [user("Hello")])
        shown = client.show(f"{MODEL}:latest")
        assert {"completion", "tools", "thinking", "vision"} <= set(shown.capabilities or ())
        assert any(name.endswith(".context_length") for name in shown.modelinfo or {})
        assert (shown.parameters or "").split("\n") == ["temperature 1.0"]

    def test_the_version_is_one_that_clients_compare(self, address: str) -> None:
        found = httpx.get(f"{address}/api/version").json()["version"]
        assert tuple(map(int, found.split("."))) >= (0, 6, 4)

    def test_pulling_what_is_here_succeeds_at_once(self, client: ollama.Client) -> None:
        assert [part.status for part in client.pull(MODEL, stream=True)][-1] == "success"
        assert client.pull(MODEL).status == "success"

    def test_pulling_what_cannot_be_had_ends_in_an_error(self, client: ollama.Client) -> None:
        with pytest.raises(ollama.ResponseError):
            list(client.pull("nobody-has-this", stream=True))

    @pytest.mark.parametrize("path", ["/api/create", "/api/push"])
    def test_what_is_not_offered_is_refused_with_a_sentence(self, address: str, path: str) -> None:
        reply = post(address, path)
        assert reply.status_code == 404
        assert "models are" in reply.json()["error"]


class TestErrors:
    def test_an_unknown_model_is_404_in_ollamas_shape(self, client: ollama.Client) -> None:
        with pytest.raises(ollama.ResponseError) as caught:
            client.chat("nobody-has-this", [user("Hello")])
        assert caught.value.status_code == 404

    @pytest.mark.parametrize("path", ["/api/tags", "/api/nowhere", "/api/show"])
    def test_all_errors_under_api_have_that_shape(self, address: str, path: str) -> None:
        reply = httpx.request("PUT", f"{address}{path}")
        assert reply.status_code in (404, 405)
        assert isinstance(reply.json()["error"], str)

    @pytest.mark.parametrize(
        ("options", "named"),
        [({"mirostat": 2}, "mirostat"), ({"temperature": -3}, "temperature"), ({"num_ctx": 0}, "num_ctx")],
    )
    def test_an_option_that_cannot_be_honoured_is_refused_by_name(
        self, address: str, options: dict[str, Any], named: str
    ) -> None:
        reply = post(address, "/api/chat", messages=[user("Hello")], options=options)
        assert reply.status_code == 400
        assert f"options.{named}" in reply.json()["error"]

    def test_curl_without_a_media_type_is_answered(self, address: str) -> None:
        body = json.dumps({"model": MODEL, "prompt": "Hello", "stream": False})
        headers = {"content-type": "application/x-www-form-urlencoded"}
        assert (
            httpx.post(f"{address}/api/generate", content=body, headers=headers).json()["response"] == "Hello"
        )

    @pytest.mark.parametrize("header", ["origin", "sec-fetch-site"])
    def test_a_form_of_a_web_page_is_not(self, address: str, header: str) -> None:
        own = {"origin": address, "sec-fetch-site": "same-origin"}[header]
        headers = {"content-type": "application/x-www-form-urlencoded", header: own}
        reply = httpx.post(f"{address}/api/generate", content=b'{"model":"x","prompt":"a"}', headers=headers)
        assert reply.status_code in (403, 415)


class TestEmbeddings:
    def test_texts_become_vectors(self, client: ollama.Client) -> None:
        reply = client.embed(MODEL, ["one two", "three"])
        assert len(reply.embeddings) == 2
        assert len(reply.embeddings[0]) == 16
        assert reply.prompt_eval_count

    def test_the_older_address_gives_one(self, client: ollama.Client) -> None:
        old, new = client.embeddings(MODEL, "one two"), client.embed(MODEL, "one two")
        assert list(old.embedding) == list(new.embeddings[0])


def test_every_field_of_the_clients_own_types_is_known() -> None:
    from ollama import _types as types

    for params, contract in (
        (types.ChatRequest, OllamaChatDialect.contract),
        (types.GenerateRequest, OllamaGenerateDialect.contract),
        (types.EmbedRequest, EMBED),
        (types.EmbeddingsRequest, EMBED_ONE),
    ):
        assert set(params.model_fields) <= {*names_of(contract.body), *contract.accepted, *contract.refused}
    options = {field.encode_name for field in msgspec.structs.fields(OllamaOptions)}
    assert set(types.Options.model_fields) <= options


def test_a_picture_is_not_made_here_and_the_refusal_says_where(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match=r"`width`.*/v1/images/generations"):
        client.generate(MODEL, "A cat", width=64)
