"""The OpenAPI document is complete, and its page works without a network."""

import asyncio
import json
import shutil
import subprocess
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pippin.core.conversation import Tool
from pippin.core.events import Event, ToolsListed
from tests.api.dialects import golden, openai_golden
from tests.api.dialects.test_golden_frames import payloads
from tests.api.fakes import FakeService, application, client_of, routes_of
from tests.api.golden_events import SEQUENCES, accepted, called, end, part


def get(path: str) -> Any:
    async def main() -> Any:
        async with client_of(application(FakeService())) as client:
            return await client.get(path)

    return asyncio.run(main())


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = get("/openapi.json").json()
    return found


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [each for inner in value.values() for each in references(inner)]
    return [each for inner in value for each in references(inner)] if isinstance(value, list) else []


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= names


def test_every_component_is_a_valid_schema(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))


def test_every_dialect_shows_its_body(document: dict[str, Any]) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        operation = document["paths"][path]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert document["components"]["schemas"][body.rpartition("/")[2]]["properties"]["model"]
        assert "text/event-stream" in operation["responses"]["200"]["content"]


def test_errors_bodies_and_media_are_those_that_are_served(document: dict[str, Any]) -> None:
    paths = document["paths"]
    failure = paths["/v1/messages/count_tokens"]["post"]["responses"]["default"]["content"]
    assert failure["application/json"]["schema"]["$ref"].endswith("/Failure")
    failure = paths["/v1/models"]["get"]["responses"]["default"]["content"]
    assert failure["application/json"]["schema"]["$ref"].endswith("/ErrorBody")
    message = paths["/v1/messages"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert message["required"] == ["max_tokens"]
    assert "audio/mpeg" in paths["/v1/audio/speech"]["post"]["responses"]["200"]["content"]
    assert "application/json" not in paths["/v1/audio/speech"]["post"]["responses"]["200"]["content"]
    assert paths["/v1/settings"]["patch"]["requestBody"]["required"]
    assert not paths["/v1/unload"]["post"]["requestBody"]["required"]
    assert "requestBody" not in paths["/v1/cache/reset"]["post"]


def test_what_must_not_be_empty_or_missing_is_said(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name, field in (
        ("ChatRequest", "messages"),
        ("MessagesBody", "messages"),
        ("CompletionRequest", "prompt"),
        ("EmbeddingRequest", "input"),
    ):
        assert schemas[name]["properties"][field]["minItems"] == 1
    for path in ("/api/v0/chat/completions", "/api/v0/completions", "/api/v0/embeddings"):
        ours = document["paths"][path.replace("/api/v0", "/v1")]["post"]["requestBody"]
        assert document["paths"][path]["post"]["requestBody"] == ours
    assert not document["paths"]["/v1/conversations"]["post"]["requestBody"]["required"]


def test_every_route_is_in_the_document(document: dict[str, Any]) -> None:
    routes = routes_of(application(FakeService()))
    named = ("/v1/", "/v1beta/", "/api/")
    routed = {route.path.replace(":path", "") for route in routes if route.path.startswith(named)}
    assert routed - {"/v1/openapi.json"} == set(document["paths"])


def test_every_address_has_a_summary(document: dict[str, Any]) -> None:
    assert all(each["summary"] for methods in document["paths"].values() for each in methods.values())


def test_the_page_loads_nothing_from_elsewhere() -> None:
    page = get("/docs")
    assert page.status_code == 200
    assert "//" not in page.text.replace("http-equiv", "")
    assert "default-src 'self'" in page.headers["content-security-policy"]


BROWSER = """
const node = (tag) => ({tag, children: [], set textContent(text) { this.children = [text]; },
                        append(...more) { this.children.push(...more); }});
const text = (part) => typeof part === "string" ? part : part.children.map(text).join(" ");
const page = node("div");
globalThis.document = {createElement: node, getElementById: () => page};
globalThis.fetch = async () => ({json: async () => JSON.parse(require("fs").readFileSync(0, "utf8"))});
eval(process.argv[1]);
setTimeout(() => console.log(text(page)), 0);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not on this machine")
def test_the_page_shows_every_address_and_field(document: dict[str, Any]) -> None:
    script = get("/docs").text.partition("<script>")[2].partition("</script>")[0]
    done = subprocess.run(
        ["node", "-e", BROWSER, script],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        check=True,
    )
    assert [path for path in document["paths"] if path not in done.stdout] == []
    for field in ("max_completion_tokens", "timestamp_granularities"):
        assert field in done.stdout


ANSWERS = {
    "/v1/responses": lambda events: golden.whole("responses", events),
    "/v1/messages": lambda events: golden.whole("messages", events),
    "/v1/chat/completions": lambda events: openai_golden.whole("chat_completions", events),
    "/v1/completions": lambda events: openai_golden.whole("completions", events),
}
SERVER_CALL: list[Event] = [
    accepted(),
    ToolsListed("demo", (Tool("add", "Adds.", {"type": "object"}), Tool("bare"))),
    *called("{}", "3", is_error=False),
    *called("{}", "It broke.", is_error=True, index=2),
    *part("text", "Three.", index=4),
    end(9),
]


def validator_of(document: dict[str, Any], path: str) -> Draft202012Validator:
    answer = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    return Draft202012Validator(answer | {"components": document["components"]})


@pytest.mark.parametrize("sequence", [name for name in SEQUENCES if not name.startswith("fails")])
@pytest.mark.parametrize("path", ANSWERS)
def test_answers_are_as_the_document_says(document: dict[str, Any], path: str, sequence: str) -> None:
    validator_of(document, path).validate(json.loads(ANSWERS[path](SEQUENCES[sequence])))


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_answers_with_tools_of_servers_are_as_the_document_says(document: dict[str, Any], path: str) -> None:
    validator_of(document, path).validate(json.loads(ANSWERS[path](SERVER_CALL)))


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_the_document_describes_answers_in_full(document: dict[str, Any], path: str) -> None:
    answer = json.loads(ANSWERS[path](SEQUENCES["reasoning_then_tool_call"]))
    assert not validator_of(document, path).is_valid(answer | {"more": 1})
    items = answer["output" if "output" in answer else "content"]
    items[0]["more"] = 1
    assert not validator_of(document, path).is_valid(answer)


@pytest.mark.parametrize("event", [name for name in SEQUENCES if not name.startswith("fails_at_once")])
def test_every_event_of_a_response_holds_one_that_is_as_the_document_says(
    document: dict[str, Any], event: str
) -> None:
    validator = validator_of(document, "/v1/responses")
    for payload in payloads(golden.streamed("responses", SEQUENCES[event])):
        if "response" in payload:
            validator.validate(payload["response"])
