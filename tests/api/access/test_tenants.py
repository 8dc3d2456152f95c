"""Several callers on one server: what one of them may do, and what it may never learn of, or do to, another."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest
from starlette.types import ASGIApp

from pippin.api.access.exchange import Exchange
from pippin.api.access.guards import Limits
from pippin.api.access.keys import Keyring
from pippin.api.app import create_app, open_api
from pippin.config.mcp_file import McpServer, McpSettings
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.config.settings import Settings
from pippin.core.errors import ServerError
from pippin.core.models import CacheStats, EngineStats, ModelInfo, ModelKind, RequestStatus
from pippin.core.tasks import Generate
from pippin.service.service import Service
from tests.api.fakes import MODEL, FakePool, FakeService, Wire, application, client_of

CHAT: dict[str, Any] = {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}]}
TENANTS = """
root: {key: k-root, role: admin}
alice: {key: k-alice, rate_limit: 3}
bob: {key: k-bob, mcp_tools: true}
carol: {key: k-carol, models: [org/other], kinds: [language]}
dan: {key: k-dan, kinds: [speech]}
erin: {key: k-erin, endpoints: [/v1/models, /chat/completions]}
"""


@pytest.fixture
def keys(tmp_path: Path) -> str:
    (tmp_path / "keys.yaml").write_text(TENANTS)
    return str(tmp_path / "keys.yaml")


def shown(name: str | None) -> dict[str, str]:
    return {} if name is None else {"x-api-key": f"k-{name}"}


def ask(app: ASGIApp, method: str, path: str, who: str | None = None, **fields: Any) -> httpx.Response:
    headers = shown(who) | fields.pop("headers", {})

    async def main() -> httpx.Response:
        async with client_of(app) as client:
            return await client.request(method, path, headers=headers, **fields)

    return asyncio.run(main())


# Roles and rights


@pytest.mark.parametrize(
    ("given", "filed", "admins"),
    [
        (("one",), None, {"key-1"}),
        (("one", "two"), None, set()),
        ((), "one", {"key-1"}),
        ((), "a: {key: one, rate_limit: 5}", set()),
        ((), "a: {key: one, models: [m]}", set()),
        ((), "a: {key: one, rate_limit: 5, role: admin}", {"a"}),
        ((), "a: one\nb: two", set()),
        ((), "a: one\nb: {key: two, role: admin}", {"b"}),
        (("one",), "a: two\nb: three", {"key-1"}),
        (("one",), "a: {key: two, role: admin}", {"key-1", "a"}),
        (("one", "one"), None, {"key-1"}),
        ((), "a: {key: one, role: user}", set()),
    ],
)
def test_who_is_an_administrator(
    given: tuple[str, ...], filed: str | None, admins: set[str], tmp_path: Path
) -> None:
    options = ServerOptions(api_keys=given)
    if filed is not None:
        (tmp_path / "keys").write_text(filed)
        options = msgspec.structs.replace(options, api_key_file=str(tmp_path / "keys"))
    assert {key.name for key in Keyring(options).keys if key.is_admin} == admins


MANAGEMENT = [
    ("PATCH", "/v1/settings", {"timeout": 0.001}),
    ("POST", "/unload", {}),
    ("DELETE", "/v1/cache", None),
    ("POST", f"/v1/models/{MODEL.id}/pin", {}),
    ("POST", "/v1/mcp/execute", {"tool_name": "x"}),
]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(("method", "path", "body"), MANAGEMENT)
def test_only_administrators_manage(method: str, path: str, body: Any, host: str, keys: str) -> None:
    app = application(FakeService(), api_key_file=keys, host=host, allow_unauthenticated=True)
    refused = ask(app, method, path, "alice", json=body)
    assert refused.status_code == 403
    assert "role: admin" in refused.text
    assert ask(app, method, path, "root", json=body).status_code != 403
    assert ask(app, method, path, json=body).status_code == 401


def test_keys_of_whom_none_may_manage_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    application(FakeService(), api_keys=("one", "two"))
    assert "role: admin" in caplog.text


def test_a_limit_survives_a_change_of_settings(keys: str) -> None:
    async def main() -> None:
        async with client_of(application(FakeService(), api_key_file=keys)) as client:

            async def chat() -> int:
                return (
                    await client.post("/v1/chat/completions", json=CHAT, headers=shown("alice"))
                ).status_code

            assert [await chat() for _ in range(4)] == [200, 200, 200, 429]
            for who, status in (("alice", 403), ("root", 200)):
                for change in ({"keepalive_interval": 7.0}, {"rate_limit": 100}):
                    reply = await client.patch("/v1/settings", json=change, headers=shown(who))
                    assert reply.status_code == status, reply.text
            assert await chat() == 429

    asyncio.run(main())


def test_a_changed_limit_leaves_the_share_that_was_left() -> None:
    limits = Limits(ServerOptions(rate_limit=10), clock=lambda: 0.0)
    exchange = Exchange(id="x", path="/", caller="c")
    for _ in range(5):
        limits.admit(exchange)
    limits.adopt(ServerOptions(rate_limit=4))
    limits.admit(exchange)
    limits.admit(exchange)
    with pytest.raises(ServerError):
        limits.admit(exchange)


CHATS = [("/v1/chat/completions", CHAT), ("/v1/embeddings", {"model": MODEL.id, "input": "Hi"})]


@pytest.mark.parametrize(("path", "body"), [*CHATS, ("/tokenize", {"model": MODEL.id, "prompt": "Hi"})])
@pytest.mark.parametrize("who", ["carol", "dan"])
def test_a_key_opens_its_models_and_kinds_alone(path: str, body: Any, who: str, keys: str) -> None:
    service = FakeService()
    app = application(service, api_key_file=keys)
    for name in (MODEL.id, "org/unknown", "default"):
        reply = ask(app, "POST", path, who, json=body | {"model": name})
        assert reply.status_code == 403
        assert "does not open the model" in reply.text
    assert service.runs == []
    assert ask(app, "GET", "/v1/models", who).json()["data"] == []
    assert ask(app, "GET", f"/v1/models/{MODEL.id}", who).status_code == 403
    assert len(ask(app, "GET", "/v1/models", "bob").json()["data"]) == 1


def test_a_key_opens_its_endpoints_alone(keys: str) -> None:
    app = application(FakeService(), api_key_file=keys)
    assert ask(app, "GET", "/models", "erin").status_code == 200
    assert ask(app, "GET", f"/v1/models/{MODEL.id}", "erin").status_code == 200
    assert ask(app, "POST", "/v1/chat/completions", "erin", json=CHAT).status_code == 200
    for path in ("/", "/health", "/metrics"):
        assert ask(app, "GET", path, "erin").status_code != 403, path
    for path in ("/v1/status", "/v1/modelsx", "/docs", "/v1/responses/x", "/v1/chat"):
        assert ask(app, "GET", path, "erin").status_code == 403, path


def test_a_key_that_lists_models_does_not_ask_them_by_google_s_addresses(keys: str) -> None:
    """Which at `/v1` lie below that of the list."""
    app, body = application(FakeService(), api_key_file=keys), {"contents": [{"parts": [{"text": "Hi"}]}]}
    for version in ("v1", "v1beta"):
        path = f"/{version}/models/{MODEL.id}:generateContent"
        assert ask(app, "POST", path, "bob", json=body).status_code == 200
        for who in ("carol", "erin"):
            reply = ask(app, "POST", path, who, json=body)
            assert (reply.status_code, reply.json()["error"]["status"]) == (403, "PERMISSION_DENIED")


# Owners


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {key: one, name: a}\n- {key: two, name: a}", "Two API keys are called 'a'"),
        ("- one\n- {key: two, name: key-1}", "Two API keys are called 'key-1'"),
        ("a: one\nb: one", "is there twice"),
        ("a: from-the-option", "is there twice"),
    ],
)
def test_two_keys_of_one_name_and_one_key_of_two_names_are_refused_at_the_start(
    text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ServerError, match=said) as refused:
        application(FakeService(), api_keys=("from-the-option",), api_key_file=str(tmp_path / "keys"))
    assert "\n" not in str(refused.value)
    assert "from-the-option" not in str(refused.value)


def test_what_a_key_stored_is_not_read_by_the_key_that_takes_its_place(tmp_path: Path) -> None:
    store = str(tmp_path / "responses.db")

    def server(*given: str) -> ASGIApp:
        return application(FakeService(), api_keys=given, response_store=store)

    made = ask(server("k-a", "k-b"), "POST", "/v1/conversations", "a", json={"metadata": {"secret": "x"}})
    path = f"/v1/conversations/{made.json()['id']}"
    assert ask(server("k-b"), "GET", path, "b").status_code == 404
    assert ask(server("k-b", "k-a"), "GET", path, "b").status_code == 404
    assert ask(server("k-b", "k-a"), "GET", path, "a").json()["metadata"] == {"secret": "x"}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", CHAT),
        ("/api/chat", CHAT | {"stream": False}),
        ("/v1/responses", {"model": MODEL.id, "input": "Hi"}),
        ("/v1/messages", CHAT | {"max_tokens": 4}),
    ],
)
@pytest.mark.parametrize("wish", [0, 0.001, "5m", -1])
def test_how_long_a_model_stays_is_for_administrators(
    path: str, fields: dict[str, Any], wish: Any, keys: str
) -> None:
    body = fields | {"keep_alive": wish}
    for who, honoured in (("root", True), ("bob", False)):
        service = FakeService()
        reply = ask(application(service, api_key_file=keys), "POST", path, who, json=body)
        assert reply.is_success, reply.text
        task = service.runs[0].task
        assert isinstance(task, Generate)
        assert (task.request.keep_alive is not None) == honoured
        assert ("`keep_alive` was ignored" in reply.text) == (not honoured)


def test_only_administrators_put_a_request_before_those_of_others(keys: str) -> None:
    def asked(priority: int, who: str) -> httpx.Response:
        app = application(FakeService(), api_key_file=keys)
        return ask(app, "POST", "/v1/chat/completions", who, json=CHAT | {"priority": priority})

    assert asked(-(2**31), "root").is_success
    assert asked(7, "bob").is_success
    refused = asked(-1, "bob")
    assert refused.status_code == 403
    assert refused.json()["error"]["param"] == "priority"


def test_without_keys_on_a_public_address_nobody_decides_for_others() -> None:
    service = FakeService()
    app = application(service, host="0.0.0.0")
    assert ask(app, "POST", "/v1/chat/completions", json=CHAT | {"keep_alive": 0}).is_success
    assert isinstance(task := service.runs[0].task, Generate)
    assert task.request.keep_alive is None
    assert ask(app, "POST", "/v1/chat/completions", json=CHAT | {"priority": -1}).status_code == 403


def test_a_salt_follows_the_key_not_its_place() -> None:
    async def salt(key: str, *given: str) -> str | None:
        service = FakeService()
        async with client_of(application(service, api_keys=given)) as client:
            assert (
                await client.post("/v1/chat/completions", json=CHAT, headers={"x-api-key": key})
            ).is_success
        task = service.runs[0].task
        assert isinstance(task, Generate)
        return task.request.cache_salt

    first = asyncio.run(salt("a", "a", "b"))
    assert first is not None
    assert asyncio.run(salt("a", "b", "a")) == first
    assert asyncio.run(salt("b", "b", "c")) != first


def test_no_salt_that_a_client_sends_is_the_salt_of_another_key() -> None:
    """Callers without a key come in at open paths, and know the names of others."""

    async def salt(key: str | None, body: dict[str, Any], **headers: str) -> str | None:
        service = FakeService()
        app = application(service, api_keys=("a", "b"), open_paths=("/v1/chat",))
        shown = {"x-api-key": key} if key is not None else {}
        async with client_of(app) as client:
            reply = await client.post("/v1/chat/completions", json=CHAT | body, headers=shown | headers)
            assert reply.is_success, reply.text
        task = service.runs[0].task
        assert isinstance(task, Generate)
        return task.request.cache_salt

    owner = Keyring(ServerOptions(api_keys=("a", "b"))).keys[0].owner
    real = asyncio.run(salt("a", {}))
    assert real is not None
    for sent in (real, owner, "\0\0" + owner, "\0" + owner, "", owner + "\0"):
        assert asyncio.run(salt(None, {"cache_salt": sent} if sent else {})) != real
        if sent and "\0" not in sent:
            assert asyncio.run(salt(None, {"cache_salt": "\0"}, **{"x-tenant-id": sent})) != real
    assert asyncio.run(salt("a", {"cache_salt": "x"})) != asyncio.run(salt("b", {"cache_salt": "x"}))


def test_a_users_key_reads_no_settings_no_model_of_others_and_nothing_of_the_cache(keys: str) -> None:
    class Cached(FakePool):
        async def stats(self, name: str) -> EngineStats:
            return EngineStats(running=1, cache=CacheStats(hits=7, lookup_tokens=9, hit_tokens=5))

    service = FakeService()
    service.pool = Cached()
    app = application(service, api_key_file=keys, models=(ModelEntry(path=MODEL.id),))
    assert [ask(app, "GET", "/v1/settings", who).status_code for who in ("root", "alice")] == [200, 403]
    for who, sees in (("root", True), ("alice", True), ("carol", False), (None, False)):
        assert (MODEL.id in ask(app, "GET", "/health", who).text) is sees
        if who is not None:
            told = ask(app, "GET", "/v1/status", who)
            assert (MODEL.id in told.text) is sees
            assert bool(told.json()["cache"]["hits"]) is (who == "root")
            assert bool(ask(app, "GET", "/v1/cache/stats", who).json()["hits"]) is (who == "root")


def test_keys_that_can_not_be_read_again_stay_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("a: k-a\nb: k-b")
    service = cast(Service, FakeService())
    api = open_api(service, Settings(server=ServerOptions(api_key_file=str(path))))
    app, live = create_app(api), api.settings
    path.write_text("- {key: k-a, name: a}\n- {key: k-c, name: a}")
    for adopt in live.followers:
        adopt(live.settings.server)
    assert "The API keys stay as they were" in caplog.text
    assert ask(app, "GET", "/v1/models", "b").status_code == 200
    assert ask(app, "GET", "/v1/models", "c").status_code == 401


# Requests of others


class WatchedPool(FakePool):
    """Tells of the runs that its service has started, as a worker does."""

    service: FakeService

    async def stats(self, name: str) -> EngineStats:
        running = [
            RequestStatus(id=run.id, phase="generation") for run in self.service.runs if not run.closed
        ]
        return EngineStats(running=len(running), requests=tuple(running))


def watched_service() -> FakeService:
    service = FakeService()
    service.hold = True
    service.pool = WatchedPool()
    service.pool.service = service
    return service


async def seen_by(client: httpx.AsyncClient, who: str | None) -> list[str]:
    reply = (await client.get("/v1/status", headers=shown(who))).json()
    assert reply["num_running"] == 1
    return [request["request_id"] for request in reply["requests"]]


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/v1/requests/{}"), ("POST", "/requests/{}/cancel")])
def test_a_request_is_seen_and_stopped_by_its_owner_and_administrators_alone(
    method: str, path: str, keys: str
) -> None:
    async def main() -> None:
        service = watched_service()
        app = application(service, api_key_file=keys)
        for stopper in ("bob", "root"):
            wire = Wire(app, json.dumps(CHAT | {"stream": True}).encode())
            wire.headers += ((b"x-request-id", b"mine"), (b"x-api-key", b"k-bob"))
            running = asyncio.create_task(wire.run())
            await wire.until('"role":"assistant"')
            async with client_of(app) as client:
                assert await seen_by(client, "alice") == []
                [run] = await seen_by(client, "bob")
                assert await seen_by(client, "root") == [run]
                for name in ("mine", run, f"chatcmpl-{run}"):
                    reply = await client.request(method, path.format(name), headers=shown("alice"))
                    assert reply.status_code == 404
                assert not running.done()
                stopped = await client.request(method, path.format("mine"), headers=shown(stopper))
                assert stopped.status_code == 200
            await asyncio.wait_for(running, 2)
            assert "request_cancelled" in wire.text

    asyncio.run(main())


def test_a_request_id_that_another_uses_too_stops_the_callers_own_request(keys: str) -> None:
    async def main() -> None:
        service = watched_service()
        app = application(service, api_key_file=keys)
        wires = {}
        for who in (b"k-alice", b"k-bob"):
            wires[who] = Wire(app, json.dumps(CHAT | {"stream": True}).encode())
            wires[who].headers += ((b"x-request-id", b"same"), (b"x-api-key", who))
        running = {who: asyncio.create_task(wire.run()) for who, wire in wires.items()}
        for wire in wires.values():
            await wire.until('"role":"assistant"')
        async with client_of(app) as client:
            assert (await client.delete("/v1/requests/same", headers=shown("bob"))).status_code == 200
        await asyncio.wait_for(running[b"k-bob"], 2)
        assert not running[b"k-alice"].done()
        wires[b"k-alice"].gone.set()
        await running[b"k-alice"]

    asyncio.run(main())


def test_requests_are_closed_as_management_is_where_nobody_can_be_told_apart() -> None:
    async def main() -> None:
        service = watched_service()
        app = application(service, host="0.0.0.0")
        wire = Wire(app, json.dumps(CHAT | {"stream": True}).encode())
        running = asyncio.create_task(wire.run())
        await wire.until('"role":"assistant"')
        async with client_of(app) as client:
            assert await seen_by(client, None) == []
            for name in (service.runs[0].id, "unknown"):
                assert (await client.delete(f"/v1/requests/{name}")).status_code == 403
        wire.gone.set()
        await running

    asyncio.run(main())


# MCP tools

DEMO = {"type": "mcp", "server_label": "demo"}
DOORS: list[tuple[str, Any, dict[str, str]]] = [
    ("/v1/chat/completions", CHAT, {"x-mcp-servers": "*"}),
    ("/v1/chat/completions", CHAT, {"x-mcp-servers": "demo"}),
    ("/v1/chat/completions", CHAT | {"tools": [DEMO]}, {}),
    ("/v1/responses", {"model": MODEL.id, "input": "Hi", "tools": [DEMO]}, {}),
    ("/v1/responses", {"model": MODEL.id, "input": "Hi"}, {"x-mcp-servers": "*"}),
    ("/v1/responses/input_tokens", {"model": MODEL.id, "input": "Hi", "tools": [DEMO]}, {}),
    ("/v1/messages", CHAT | {"max_tokens": 5}, {"x-mcp-servers": "*"}),
    (
        "/v1/messages",
        CHAT
        | {
            "max_tokens": 5,
            "tools": [{"type": "mcp_toolset", "mcp_server_name": "demo"}],
        },
        {},
    ),
    ("/v1/messages/count_tokens", CHAT, {"x-mcp-servers": "*"}),
]


def with_tools(service: FakeService, **options: Any) -> ASGIApp:
    server = McpServer(name="demo", transport="stdio", command="never started")
    settings = Settings(server=ServerOptions(**options))
    return create_app(open_api(cast(Service, service), settings, McpSettings(servers=(server,))))


@pytest.mark.parametrize(("path", "body", "headers"), DOORS)
def test_whoever_may_not_manage_is_given_no_tools_by_any_door(
    path: str, body: Any, headers: dict[str, str], keys: str
) -> None:
    service = FakeService()
    for who, options in ((None, {"host": "0.0.0.0"}), ("alice", {"api_key_file": keys})):
        reply = ask(with_tools(service, **options), "POST", path, who, json=body, headers=headers)
        assert reply.status_code == 403, reply.text
        assert "MCP tools are for those who may manage" in reply.text
    assert service.runs == []


def test_tools_that_the_operator_offers_to_all_are_for_those_who_may_manage() -> None:
    service = FakeService()
    app = with_tools(service, host="0.0.0.0", mcp_offer="always")
    assert ask(app, "POST", "/v1/chat/completions", json=CHAT).status_code == 200
    task = service.runs[0].task
    assert isinstance(task, Generate)
    assert task.request.tools == ()


def test_a_key_may_be_given_tools_although_it_may_not_manage(keys: str) -> None:
    app = with_tools(FakeService(), api_key_file=keys)
    call = {"tool_name": "demo__x"}
    assert ask(app, "POST", "/v1/mcp/execute", "alice", json=call).status_code == 403
    assert ask(app, "POST", "/v1/mcp/execute", "bob", json=call).status_code == 404  # it is not connected
    assert ask(app, "POST", "/unload", "bob", json={}).status_code == 403


# Web pages

FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://["},
    {"origin": "://127.0.0.1:8000.evil.example"},
    {"origin": "http://localhost:3000"},
    {"sec-fetch-site": "cross-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_page_of_another_origin_uses_nothing_but_what_is_open(headers: dict[str, str]) -> None:
    service = FakeService()
    app = application(service, open_paths=("/v1/models",))
    form = {"model": (None, MODEL.id), "file": ("a.wav", b"RIFF")}
    for path in ("/v1/audio/transcriptions", "/v1/images/edits"):
        assert ask(app, "POST", path, files=form, headers=headers).status_code == 403
    for path in ("/v1/models", "/v1/audio/voices?model=org/name", "/v1/status", "/docs"):
        assert ask(app, "GET", path, headers=headers).status_code == 403, path
    assert service.runs == []
    for path in ("/", "/health", "/metrics"):
        assert ask(app, "GET", path, headers=headers).status_code != 403, path


def test_pages_of_the_operators_origins_and_of_the_server_itself_are_let_in() -> None:
    listed = application(FakeService(), allowed_origins=("https://chat.example",))
    page = {"origin": "https://chat.example", "sec-fetch-site": "cross-site"}
    assert ask(listed, "POST", "/v1/chat/completions", json=CHAT, headers=page).status_code == 200
    other = {"origin": "https://evil.example"}
    assert ask(listed, "POST", "/v1/chat/completions", json=CHAT, headers=other).status_code == 403
    every = application(FakeService(), allowed_origins=("*",))
    assert ask(every, "POST", "/v1/chat/completions", json=CHAT, headers=other).status_code == 200
    assert ask(every, "POST", "/unload", json={}, headers=other).status_code == 403
    own = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    app = application(FakeService())
    assert ask(app, "POST", "/v1/chat/completions", json=CHAT, headers=own).status_code == 200
    assert ask(app, "GET", "/v1/models", headers={"sec-fetch-site": "none"}).status_code == 200


def test_a_name_that_leads_here_is_no_origin_of_the_server_where_names_are_not_checked() -> None:
    rebound = {"origin": "http://evil.example:8000", "host": "evil.example:8000"}
    public = application(FakeService(), host="0.0.0.0")
    assert ask(public, "POST", "/v1/chat/completions", json=CHAT, headers=rebound).status_code == 403


class Speaking(FakeService):
    async def find(self, name: str, kind: ModelKind | None = None) -> ModelInfo:
        return msgspec.structs.replace(await super().find(name, kind), kind="speech")


def test_a_model_that_does_not_speak_has_no_voices() -> None:
    service = FakeService()
    service.pool.loaded = False
    reply = ask(application(service), "GET", "/v1/audio/voices")
    assert reply.status_code == 400
    assert "is of kind language: name one that speaks" in reply.text


@pytest.mark.parametrize("name", [MODEL.id, "default", None])
def test_voices_are_those_of_a_model_in_memory_and_never_load_one(name: str | None) -> None:
    service = Speaking()
    service.pool.loaded = False
    query = {} if name is None else {"model": name}
    reply = ask(application(service), "GET", "/v1/audio/voices", params=query)
    assert reply.status_code == 409
    assert "load it with POST /v1/models/load" in reply.text
    assert not service.pool.loaded


def test_voices_of_a_model_that_is_not_here_download_nothing() -> None:
    service = FakeService()
    reply = ask(application(service), "GET", "/v1/audio/voices", params={"model": "org/elsewhere"})
    assert reply.status_code == 404
    assert service.runs == []


def test_no_key_and_no_owner_is_in_the_log(keys: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ask(application(FakeService(), api_key_file=keys), "POST", "/unload", "alice", json={})
    assert "k-alice" not in caplog.text
    assert "client=alice" in caplog.text
