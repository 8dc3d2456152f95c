"""API keys: the forms of their file, their own limits, how they are compared, and where they never show."""

import asyncio
import logging
from pathlib import Path
from typing import cast

import pytest

from pippin.api.access.keys import Keyring
from pippin.api.app import create_app, open_api
from pippin.config.load import load
from pippin.config.options.server import ServerOptions
from pippin.config.settings import GivenFlag, Settings
from pippin.core.errors import ServerError
from pippin.service.service import Service
from tests.api.access.test_guards import CHAT, KEYED, ask
from tests.api.fakes import FakeService, application, client_of


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["one", "two"]', ["key-1", "key-2"]),
        ("one\ntwo\n", ["key-1", "key-2"]),
        ("alice: one\nbob:\n  key: two\n  rate_limit: 5\n", ["alice", "bob"]),
        ("- name: alice\n  key: one\n- two\n", ["alice", "key-2"]),
    ],
)
def test_a_key_file_has_several_forms(tmp_path: Path, text: str, names: list[str]) -> None:
    (tmp_path / "keys").write_text(text)
    ring = Keyring(ServerOptions(api_key_file=str(tmp_path / "keys")))
    found = [ring.find(key) for key in (b"one", b"two")]
    assert [key.name for key in found if key is not None] == names
    assert ring.find(b"three") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[{nokey: 1}]", "- key: ''", "{{{", "- 5", "a: 7", "a: {key: k, limit: 3}"]
)
def test_a_broken_key_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ServerError, match="can't be used"):
        Keyring(ServerOptions(api_key_file=str(tmp_path / "keys")))
    with pytest.raises(ServerError, match="can't be used"):
        Keyring(ServerOptions(api_key_file=str(tmp_path / "missing")))


def test_keys_never_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    ask("GET", "/v1/models", headers={"x-api-key": "sk-one"}, **KEYED)
    ask("GET", "/v1/models", headers={"x-api-key": "sk-guess"}, **KEYED)
    assert "sk-" not in caplog.text


def test_each_key_of_the_file_has_its_own_limits(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("alice: {key: one, rate_limit: 1}\nbob: {key: two, token_rate_limit: 10}\ncarol: three\n")

    async def main() -> dict[str, list[int]]:
        async with client_of(application(FakeService(), api_key_file=str(path))) as client:
            return {
                key: [
                    (
                        await client.post("/v1/chat/completions", json=CHAT, headers={"x-api-key": key})
                    ).status_code
                    for _ in range(3)
                ]
                for key in ("one", "two", "three")
            }

    codes = asyncio.run(main())  # an answer is 14 tokens
    assert codes == {"one": [200, 429, 429], "two": [200, 429, 429], "three": [200, 200, 200]}


@pytest.mark.parametrize("shown", [b"one", b"two", b"thre", b""])
def test_the_time_of_a_comparison_tells_nothing(shown: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys are compared whichever is shown, and as digests, by the function made for it."""
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    ring = Keyring(ServerOptions(api_keys=("one", "two", "three")))
    monkeypatch.setattr("hmac.compare_digest", compare)
    ring.find(shown)
    assert len(compared) == 3
    assert all(len(each) == 32 for pair in compared for each in pair)


def test_no_keys_is_an_empty_ring() -> None:
    assert not Keyring(ServerOptions())
    assert Keyring(ServerOptions(api_keys=("k",)))


def test_a_key_that_is_taken_away_opens_nothing_any_more() -> None:
    old, new = (ServerOptions(api_keys=(key,)) for key in ("old", "new"))

    async def main() -> None:
        api = open_api(cast(Service, FakeService()), Settings(server=old))
        async with client_of(create_app(api)) as client:
            assert (await client.get("/v1/models", headers={"x-api-key": "old"})).status_code == 200
            for adopt in api.settings.followers:
                adopt(new)
            assert (await client.get("/v1/models", headers={"x-api-key": "old"})).status_code == 401
            assert (await client.get("/v1/models", headers={"x-api-key": "new"})).status_code == 200

    asyncio.run(main())


def test_a_key_file_that_others_may_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n")
    file.chmod(0o600)
    Keyring(ServerOptions(api_key_file=str(file)))
    assert not caplog.records
    file.chmod(0o644)
    Keyring(ServerOptions(api_key_file=str(file)))
    assert f"Others on this machine can read or write the API keys in {file}" in caplog.text


def test_a_key_that_leaves_the_file_opens_nothing_after_a_hangup(tmp_path: Path) -> None:
    """The options are the same as before; what they name is not."""
    path = tmp_path / "keys.yaml"
    path.write_text("root: {key: sk-root, role: admin}\nalice: {key: sk-alice, endpoints: [/v1/chat]}\n")

    async def scene() -> list[int]:
        service = cast(Service, FakeService())
        api = open_api(service, load((GivenFlag("--api-key-file", str(path)),), {}))
        async with client_of(create_app(api)) as client:
            statuses = []
            for _ in range(2):
                reply = await client.get("/v1/models", headers={"x-api-key": "sk-alice"})
                statuses.append(reply.status_code)
                path.write_text("root: {key: sk-root, role: admin}")
                await api.settings.reload()
            return statuses

    assert asyncio.run(scene()) == [403, 401]
