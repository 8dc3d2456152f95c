"""Who may come in: hosts, keys, origins, management, limits, bodies."""

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest
from starlette.types import Message

from pippin.api.access.guards import Limits, host_name, is_loopback
from pippin.config.load import load
from pippin.config.options.server import ServerOptions
from pippin.config.options.start import Compat
from pippin.core.errors import ServerError
from tests.api.fakes import MODEL, FakeService, Wire, application, client_of, routes_of
from tests.config.profiles import under

CHAT: dict[str, Any] = {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}]}
KEYED = {"api_keys": ("sk-one", "schlüssel")}
OPEN = {
    "/",
    "/page/{path:path}",
    "/health",
    "/v1/health",
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/metrics",
}


def ask(method: str, path: str, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    options = {name: fields.pop(name) for name in list(fields) if name in ServerOptions.__struct_fields__}

    async def main() -> httpx.Response:
        async with client_of(application(FakeService(), **options)) as client:
            return await client.request(method, path, headers=headers, **fields)

    return asyncio.run(main())


def every_route() -> list[tuple[str, str]]:
    found = []
    for route in routes_of(application(FakeService())):
        path = route.path.replace("{id:path}", "x").replace("{id}", "x").replace("{item_id}", "y")
        found += [(method, path) for method in sorted((route.methods or set()) - {"HEAD"})]
    return found


def test_every_route_but_the_open_ones_needs_the_key() -> None:
    async def main() -> None:
        async with client_of(application(FakeService(), **KEYED)) as client:
            for method, path in every_route():
                reply = await client.request(method, path, json={})
                assert (reply.status_code == 401) == (path not in OPEN), (method, path, reply.text)

    asyncio.run(main())


def test_the_operator_opens_addresses_and_all_below_them_and_no_others() -> None:
    opened = KEYED | {"open_paths": ("/v1/models", "/docs")}
    for path in ("/v1/models", "/models", f"/v1/models/{MODEL.id}", "/docs"):
        assert ask("GET", path, **opened).status_code == 200, path
    for path in ("/v1/modelsx", "/openapi.json", "/v1/status", "/v1/settings"):
        assert ask("GET", path, **opened).status_code == 401, path
    assert ask("POST", "/v1/chat/completions", json=CHAT, **opened).status_code == 401
    assert ask("POST", "/v1/models/load", json={}, **opened).status_code == 401  # which is management


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "//v1/models", "/v1//models", "/health/../v1/models", "/v1/models/", "/%2e/v1/models"],
)
def test_no_spelling_of_a_path_goes_round_the_key(path: str) -> None:
    async def main() -> int:
        wire = Wire(application(FakeService(), **KEYED), path=path, method="GET")
        await wire.run()
        return int(wire.sent[0]["status"])

    assert asyncio.run(main()) == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sk-one"},
        {"authorization": "bearer  sk-one "},
        {"x-api-key": "sk-one"},
        {"authorization": "Bearer wrong", "x-api-key": "sk-one"},
    ],
)
def test_a_key_is_taken_from_either_header(headers: dict[str, str]) -> None:
    assert ask("GET", "/v1/models", headers=headers, **KEYED).status_code == 200


@pytest.mark.parametrize(
    "shown", ["", "sk-on", "sk-onee", "SK-ONE", "sk-one,schlüssel", "\xff\xfe", "a" * 5000]
)
def test_any_other_key_is_401_and_not_repeated(shown: str) -> None:
    headers = [
        (b"x-api-key", shown.encode("latin-1")),
        (b"authorization", b"Bearer " + shown.encode("latin-1")),
    ]

    async def main() -> Wire:
        wire = Wire(application(FakeService(), **KEYED), path="/v1/models", method="GET")
        wire.headers += tuple(headers)
        await wire.run()
        return wire

    wire = asyncio.run(main())
    assert wire.sent[0]["status"] == 401
    assert (b"www-authenticate", b"Bearer") in wire.sent[0]["headers"]
    assert not shown or shown not in wire.text


def test_a_401_has_the_shape_of_the_dialect() -> None:
    assert ask("POST", "/v1/chat/completions", json={}, **KEYED).json()["error"]["code"] == "invalid_api_key"
    anthropic = ask("POST", "/v1/messages", json={}, **KEYED).json()
    assert (anthropic["type"], anthropic["error"]["type"]) == ("error", "authentication_error")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "8.8.8.8"]
)
def test_a_foreign_host_header_is_turned_away_on_loopback(host: str) -> None:
    reply = ask("GET", "/v1/models", headers={"host": host})
    assert reply.status_code == 403


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "host.docker.internal:8000", "mac.local"],
)
def test_hosts_of_this_machine_and_of_the_operator_are_let_in(host: str) -> None:
    reply = ask("GET", "/v1/models", headers={"host": host}, allowed_hosts=("mac.local",))
    assert reply.status_code == 200


def test_a_public_address_answers_to_any_host_if_keys_guard_it() -> None:
    keyed = {"host": "0.0.0.0", "api_keys": ("one",)}
    shown = {"host": "x.example", "x-api-key": "one"}
    assert ask("GET", "/v1/models", headers=shown, **keyed).status_code == 200
    restricted = keyed | {"allowed_hosts": ("api.example",)}
    assert ask("GET", "/v1/models", headers=shown, **restricted).status_code == 403


OWN = socket.gethostname().lower()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("192.168.1.20:8000", 200),
        ("[fe80::1]:8000", 200),
        ("localhost:8000", 200),
        (f"{OWN}:8000", 200),
        (f"{OWN.partition('.')[0]}.local", 200),
        ("evil.example:8000", 403),
        (f"{OWN}.evil.example", 403),
        ("192.168.1.20.evil.example", 403),
    ],
)
def test_without_keys_a_public_address_answers_to_its_own_hosts_alone(host: str, status: int) -> None:
    assert ask("GET", "/v1/models", headers={"host": host}, host="0.0.0.0").status_code == status
    named = {"host": "0.0.0.0", "allowed_hosts": (host.partition(":")[0],)}
    if status == 403:
        assert ask("GET", "/v1/models", headers={"host": host}, **named).status_code == 200


def test_a_public_address_without_a_key_warns_and_closes_management(caplog: pytest.LogCaptureFixture) -> None:
    assert ask("POST", "/unload", host="0.0.0.0").status_code == 403
    assert "ANYONE" in caplog.text
    assert "Management is closed." in caplog.text
    assert ask("POST", "/unload", host="0.0.0.0", open_management=("/unload",)).status_code == 200
    google = f"/v1/models/{MODEL.id}:countTokens"
    assert ask("POST", google, host="0.0.0.0", json={}).status_code == 400, (
        "no management, though below /models"
    )
    assert "Management is closed but for /unload." in caplog.text
    assert ask("POST", "/unload", host="0.0.0.0", allow_unauthenticated=True).status_code == 200
    assert "Management is open too." in caplog.text
    assert ask("PATCH", "/v1/settings", json={}, host="0.0.0.0").status_code == 403
    assert ask("POST", "/v1/chat/completions", json=CHAT, host="0.0.0.0").status_code == 200
    key = {"x-api-key": "k"}
    assert ask("POST", "/unload", host="0.0.0.0", api_keys=("k",), headers=key).status_code == 200


@pytest.mark.parametrize(
    ("compat", "opened", "closed"),
    [
        ("mlx-vlm", [("POST", "/unload"), ("POST", "/v1/cache/reset")], [("DELETE", "/v1/cache")]),
        ("vllm-mlx", [("DELETE", "/v1/cache"), ("DELETE", "/v1/cache/prefix")], [("POST", "/unload")]),
    ],
)
def test_what_a_replaced_server_let_anyone_do_stays_open_under_its_profile_and_no_more(
    compat: Compat, opened: list[tuple[str, str]], closed: list[tuple[str, str]]
) -> None:
    options = load(under(compat), {}).server
    public = {"host": "0.0.0.0", "open_management": options.open_management}
    for method, path in opened:
        assert ask(method, path, **public).status_code == 200
        assert ask(method, path, headers={"origin": "https://evil.example"}, **public).status_code == 403
        assert ask(method, path, api_keys=("k",), **public).status_code == 401
    for method, path in [*closed, ("PATCH", "/v1/settings"), ("POST", "/v1/models/load")]:
        assert ask(method, path, json={}, **public).status_code == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_a_web_page_can_not_manage_the_server(origin: str) -> None:
    for method, path in (("POST", "/unload"), ("POST", "/v1/models/m/load"), ("DELETE", "/v1/cache")):
        assert ask(method, path, headers={"origin": origin}).status_code == 403


def test_the_servers_own_page_manages_it_where_its_name_is_checked_or_a_key_is_shown() -> None:
    own = {"origin": "http://127.0.0.1:8000"}
    assert ask("POST", "/unload", json={}, headers=own).status_code == 200
    assert ask("POST", "/unload", json={}, headers=own, page=False).status_code == 403
    rebound = {"origin": "http://evil.example:8000", "host": "evil.example:8000"}
    public = {"host": "0.0.0.0", "api_keys": ("sk-one",)}
    assert ask("POST", "/unload", json={}, headers=rebound, **public).status_code == 403
    shown = rebound | {"authorization": "Bearer sk-one"}
    assert ask("POST", "/unload", json={}, headers=shown, **public).status_code == 200
    assert ask("POST", "/v1/chat/completions", json=CHAT, headers=shown, **public).status_code == 200
    opened = public | {"open_paths": ("/v1/chat/completions",)}
    assert ask("POST", "/v1/chat/completions", json=CHAT, headers=rebound, **opened).status_code == 403


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_bodies_that_a_page_can_send_without_asking_are_415(media: str) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/tokenize", "/v1/models/load"):
        reply = ask("POST", path, content=json.dumps(CHAT), headers={"content-type": media})
        assert reply.status_code == 415, path


def test_a_body_without_a_media_type_is_taken_from_programs_alone() -> None:
    body = json.dumps(CHAT).encode()
    assert ask("POST", "/v1/chat/completions", content=body).status_code == 200
    page = {"origin": "https://page.example"}
    listed = {"allowed_origins": ("https://page.example",)}
    assert ask("POST", "/v1/chat/completions", content=body, headers=page, **listed).status_code == 415


def test_cors_is_off_by_default_and_never_with_credentials() -> None:
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in ask("OPTIONS", "/v1/models", headers=preflight).headers
    for origins in (("https://a.example",), ("*",)):
        reply = ask("OPTIONS", "/v1/models", headers=preflight, allowed_origins=origins)
        assert reply.headers["access-control-allow-origin"] in ("https://a.example", "*")
        assert "access-control-allow-credentials" not in reply.headers
    page = ask(
        "GET", "/v1/models", headers={"origin": "https://a.example"}, allowed_origins=("https://a.example",)
    )
    assert "x-ratelimit-remaining-tokens" in page.headers["access-control-expose-headers"]
    other = preflight | {"origin": "https://b.example"}
    reply = ask("OPTIONS", "/v1/models", headers=other, allowed_origins=("https://a.example",))
    assert "access-control-allow-origin" not in reply.headers


def test_bodies_beyond_the_limit_are_413_before_they_are_read() -> None:
    headers = {"content-type": "application/json"}
    body = b" " * 2_000_000
    reply = ask("POST", "/v1/chat/completions", content=body, headers=headers, max_body_mb=1.0)
    assert reply.status_code == 413
    headers["content-length"] = "999999999999"
    assert ask("POST", "/v1/chat/completions", content=b"{}", headers=headers).status_code == 413


def test_an_endless_body_without_a_length_is_413_at_the_limit() -> None:
    sent = 0

    async def receive() -> Message:
        nonlocal sent
        sent += 1
        return {"type": "http.request", "body": b" " * 65536, "more_body": True}

    async def main() -> Wire:
        wire = Wire(application(FakeService(), max_body_mb=1.0))
        wire.receive = receive  # type: ignore[method-assign]
        await wire.run()
        return wire

    assert asyncio.run(main()).sent[0]["status"] == 413
    assert sent <= 18


def test_a_body_that_stops_coming_is_408() -> None:
    async def receive() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    async def main() -> Wire:
        wire = Wire(application(FakeService(), body_timeout=0.02))
        wire.receive = receive  # type: ignore[method-assign]
        await asyncio.wait_for(wire.run(), 2)
        return wire

    assert asyncio.run(main()).sent[0]["status"] == 408


def test_a_rate_limit_is_429_with_the_wait_and_counts_each_caller() -> None:
    async def main() -> None:
        app = application(FakeService(), rate_limit=2, api_keys=("a", "b"))
        async with client_of(app) as client:
            replies = [
                await client.post("/v1/chat/completions", json=CHAT, headers={"x-api-key": key})
                for key in ("a", "a", "a", "b")
            ]
        assert [reply.status_code for reply in replies] == [200, 200, 429, 200]
        told = [
            (each.headers[f"x-ratelimit-{what}-requests"])
            for each in replies
            for what in ("limit", "remaining")
        ]
        assert told == ["2", "1", "2", "0", "2", "0", "2", "1"]
        full_in = [float(each.headers["x-ratelimit-reset-requests"].removesuffix("s")) for each in replies]
        assert 0 < full_in[0] <= 30 < full_in[1] <= 60  # half a minute for each request
        assert full_in[2] <= full_in[1]  # a refused one is not counted
        assert int(replies[2].headers["retry-after"]) >= 1
        assert replies[2].json()["error"]["code"] == "rate_limit_exceeded"

    asyncio.run(main())


def test_a_token_limit_counts_what_was_used() -> None:
    async def main() -> None:
        app = application(FakeService(), token_rate_limit=20)
        async with client_of(app) as client:
            codes = [(await client.post("/v1/chat/completions", json=CHAT)).status_code for _ in range(3)]
        assert codes == [200, 200, 429]  # 14 tokens each

    asyncio.run(main())


def test_a_minute_refills_the_bucket() -> None:
    from pippin.api.access.exchange import Exchange

    now = 0.0
    limits = Limits(ServerOptions(rate_limit=6), clock=lambda: now)
    exchange = Exchange(id="x", path="/", caller="c")
    for _ in range(6):
        limits.admit(exchange)
    with pytest.raises(ServerError):
        limits.admit(exchange)
    now = 10.0
    limits.admit(exchange)
    with pytest.raises(ServerError):
        limits.admit(exchange)


def test_the_callers_least_recently_seen_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from pippin.api.access.exchange import Exchange

    monkeypatch.setattr("pippin.api.access.guards.REMEMBERED", 2)
    limits = Limits(ServerOptions(rate_limit=1), clock=lambda: 0.0)
    for caller in ("first", "second", "third", "first"):
        limits.admit(Exchange(id="x", path="/", caller=caller))
    with pytest.raises(ServerError, match="1 requests a minute"):
        limits.admit(Exchange(id="x", path="/", caller="third"))


def test_more_requests_at_once_than_allowed_are_503_and_the_place_comes_back() -> None:
    async def main() -> None:
        service = FakeService()
        service.hold = True
        app = application(service, max_concurrent=1)
        wire = Wire(app, json.dumps(CHAT).encode())
        running = asyncio.create_task(wire.run())
        await service.began.wait()
        async with client_of(app) as client:
            full = await client.post("/v1/chat/completions", json=CHAT)
            assert (full.status_code, full.headers["retry-after"]) == (503, "1")
            wire.gone.set()
            await running
            service.hold = False
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "name"),
    [("a.b:80", "a.b"), ("[::1]:80", "::1"), ("::1", "::1"), ("A", "a"), (" x ", "x"), ("", "")],
)
def test_a_host_is_read_without_its_port(host: str, name: str) -> None:
    assert host_name(host) == name


def test_loopback_has_several_names() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "192.168.1.4", "example.com", "::"]))
