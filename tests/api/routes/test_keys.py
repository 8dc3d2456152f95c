"""The list of keys: for administrators, without secrets, and of the keys that hold now."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from pippin.api.app import create_app
from pippin.api.live_settings import LiveSettings
from pippin.config.load import load
from pippin.config.settings import GivenFlag, Sources
from pippin.service import Service
from tests.api.access.test_tenants import CHAT, MODEL
from tests.api.fakes import FakeService, application, client_of

FILE = f"""
root: {{key: sk-root, role: admin}}
alice: {{key: sk-alice, rate_limit: 60, token_rate_limit: 900, models: ["{MODEL.id}"], endpoints: [/v1/chat]}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


def test_an_administrator_sees_names_rights_and_what_is_left(path: Path) -> None:
    async def scene() -> dict[str, Any]:
        async with client_of(application(FakeService(), api_key_file=str(path))) as client:
            chatted = await client.post("/v1/chat/completions", json=CHAT, headers={"x-api-key": "sk-alice"})
            assert "x-ratelimit-limit-requests" in chatted.headers
            reply = await client.get("/v1/keys", headers={"x-api-key": "sk-root"})
            assert "sk-" not in reply.text
            return cast(dict[str, Any], reply.json())

    found = asyncio.run(scene())
    root, alice = found["data"]
    assert "--api-key-file" in found["note"]
    assert root == {
        "name": "root",
        "role": "admin",
        "models": None,
        "kinds": None,
        "endpoints": None,
        "mcp_tools": True,
        "requests": None,
        "tokens": None,
    }
    assert (alice["name"], alice["role"], alice["mcp_tools"]) == ("alice", "user", False)
    assert (alice["models"], alice["kinds"], alice["endpoints"]) == ([MODEL.id], None, ["/chat"])
    assert alice["requests"] == {"limit": 60, "remaining": 59}
    assert alice["tokens"]["limit"] == 900


def test_others_see_no_keys(path: Path) -> None:
    async def status(key: str | None, **options: Any) -> int:
        async with client_of(application(FakeService(), **options)) as client:
            reply = await client.get("/v1/keys", headers={} if key is None else {"x-api-key": key})
            return reply.status_code

    filed = {"api_key_file": str(path)}
    asked: list[tuple[str | None, dict[str, Any]]]
    asked = [(None, filed), ("sk-alice", filed), (None, {}), (None, {"host": "0.0.0.0"})]
    assert [asyncio.run(status(key, **options)) for key, options in asked] == [401, 403, 200, 403]


def test_a_key_that_leaves_the_file_opens_nothing_after_a_hangup(path: Path) -> None:
    """The options are the same as before; what they name is not."""

    async def scene() -> list[int]:
        service = cast(Service, FakeService())
        sources = Sources(flags=(GivenFlag("--api-key-file", str(path)),))
        live = LiveSettings(load(sources, {}), service)
        async with client_of(create_app(service, live.settings, live)) as client:
            statuses = []
            for _ in range(2):
                reply = await client.get("/v1/models", headers={"x-api-key": "sk-alice"})
                statuses.append(reply.status_code)
                path.write_text(FILE.splitlines()[1])  # noqa: ASYNC240
                await live.reload()
            return statuses

    assert asyncio.run(scene()) == [403, 401]
