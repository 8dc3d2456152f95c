"""Client secrets: what they open, with which session, for how long, and with whose rights."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from openai import OpenAI
from websockets.exceptions import InvalidStatus

from pippin.api.access import client_secrets
from pippin.api.access.client_secrets import ClientSecrets
from pippin.core.errors import ServerError
from tests.api.live_server import MODEL, live_server
from tests.api.sockets.realtime.client import client_of, of, said
from tests.clients import openai_of

SCRIPT = {"rules": [{"when": {"user": "who", "system": "Pippin"}, "say": "I am Pippin."}]}
SESSION = {
    "type": "realtime",
    "model": MODEL,
    "instructions": "You are Pippin.",
    "output_modalities": ["text"],
}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(
        "- {name: boss, key: boss-key, role: admin}\n"
        "- {name: web, key: web-key, rate_limit: 3}\n"
        "- {name: other, key: other-key, models: [another]}\n"
        "- {name: chat, key: chat-key, endpoints: [/chat/completions, /realtime/client_secrets]}\n"
    )
    path.chmod(0o600)
    return path


@pytest.fixture
def address(tmp_path: Path, keys: Path) -> Iterator[str]:
    with live_server(tmp_path, SCRIPT, api_key_file=str(keys)) as found:
        yield found


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def made(address: str, key: str = "web-key", **body: object) -> httpx.Response:
    return httpx.post(f"{address}/v1/realtime/client_secrets", headers=bearer(key), json=body)


def refusal(address: str, key: str, query: str = "") -> int:
    with pytest.raises(InvalidStatus) as caught, client_of(address, query, additional_headers=bearer(key)):
        pass
    return caught.value.response.status_code


def test_a_secret_opens_the_session_that_it_was_made_for(address: str) -> None:
    with openai_of(address, "web-key") as client:
        secret = client.realtime.client_secrets.create(
            session=SESSION,  # type: ignore[arg-type]
            expires_after={"anchor": "created_at", "seconds": 60},
        )
    assert secret.value.startswith("ek_")
    assert secret.session.type == "realtime"
    assert secret.session.instructions == "You are Pippin."
    protocols = ["realtime", f"openai-insecure-api-key.{secret.value}"]
    with client_of(address, "", subprotocols=protocols) as talk:
        assert talk.session["instructions"] == "You are Pippin."
        talk.says("who are you")
        events = talk.respond()
        assert said(events) == "I am Pippin."
        [limits] = of(events, "rate_limits.updated")
        assert limits["rate_limits"][0]["limit"] == 3  # those of the key that asked for it


def test_a_session_that_only_transcribes_is_made_too(address: str) -> None:
    secret = made(address, session={"type": "transcription"}).json()
    assert secret["session"]["object"] == "realtime.transcription_session"
    with client_of(address, "", additional_headers=bearer(secret["value"])) as talk:
        assert talk.session["type"] == "transcription"


def test_a_secret_opens_nothing_else(address: str) -> None:
    secret = made(address, "boss-key", session=SESSION).json()["value"]
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("POST", "/v1/unload")):
        assert httpx.request(method, address + path, headers=bearer(secret), json={}).status_code == 401
    assert made(address, secret).status_code == 401  # nor does it make others
    assert refusal(address, secret, "model=another-one") == 400
    with (
        pytest.raises(InvalidStatus) as caught,
        client_of(address.replace("http", "ws"), "", additional_headers=bearer("ek_" + "0" * 48)),
    ):
        pass
    assert caught.value.response.status_code == 401


def test_a_secret_has_no_rights_that_its_key_has_not(address: str) -> None:
    assert made(address, "other-key", session=SESSION).status_code == 403
    assert made(address, "chat-key", session=SESSION).status_code == 403


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"expires_after": {"seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "later"}}, "expires_after.anchor"),
        ({"session": {"type": "other"}}, "session.type"),
        (
            {"session": SESSION | {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}},
            "session.audio.input.turn_detection.type",
        ),
    ],
)
def test_what_cannot_be_promised_is_refused_by_name(
    address: str, body: dict[str, object], param: str
) -> None:
    reply = made(address, **body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_secret_ends_with_its_time_and_with_its_key(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_server(tmp_path, SCRIPT, api_key_file=str(keys)) as address:
        secret = made(address, session=SESSION).json()["value"]
        with client_of(address, "", additional_headers=bearer(secret)) as talk:
            monkeypatch.setattr(ClientSecrets, "_holds", lambda self, secret: False)
            assert refusal(address, secret) == 401
            assert talk.respond()[-1]["response"]["status"] == "completed"  # what is open stays open
            monkeypatch.undo()
            keys.write_text("- {name: boss, key: boss-key, role: admin}\n")
            changed = httpx.patch(
                f"{address}/v1/settings", headers=bearer("boss-key"), json={"rate_limit": 999}
            )
            assert changed.status_code == 200, changed.text
            assert refusal(address, secret) == 401
            error = talk.respond()[-1]["response"]["status_details"]["error"]
            assert "withdrawn" in error["message"]


def test_without_keys_a_secret_carries_its_session_and_a_false_one_is_told(tmp_path: Path) -> None:
    with live_server(tmp_path, SCRIPT) as address:
        secret = made(address, session=SESSION).json()["value"]
        with client_of(address, "", additional_headers=bearer(secret)) as talk:
            assert talk.session["instructions"] == "You are Pippin."
        assert refusal(address, "ek_false") == 401


def test_secrets_are_bounded_and_expire() -> None:
    now = [1000.0]
    found = ClientSecrets(clock=lambda: now[0])
    first, expires_at = found.make("a", None, b"{}", 60)
    assert expires_at == 1060
    for _ in range(client_secrets.MOST_SECRETS // client_secrets.SHARE - 1):
        found.make("a", None, b"{}", 60)
    with pytest.raises(ServerError):
        found.make("a", None, b"{}", 60)
    with pytest.raises(ServerError):
        found.make("b", None, b"x" * (client_secrets.MOST_BYTES // client_secrets.SHARE + 1), 60)
    found.make("b", None, b"{}", 60)
    assert found.find(first.encode()) is not None
    now[0] = 1060.0
    assert found.find(first.encode()) is None
    found.make("a", None, b"{}", 60)
    now[0] = -1e6  # the clock is put back: nothing is good for a week
    assert found.find(first.encode()) is None


def test_calls_over_webrtc_are_refused_with_the_way_out(address: str) -> None:
    with openai_of(address, "web-key") as client, pytest.raises(openai.BadRequestError) as caught:
        OpenAI.post(client, "/realtime/calls", body={"sdp": "v=0"}, cast_to=object)
    assert "WebSocket" in caught.value.message
