"""What settings mean for security: each risk is found, and a sound configuration has none."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pippin.api.access.posture import SecurityFinding, security_findings
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from tests.api.fakes import FakeService, application, client_of

SEVERAL = {"api_keys": ("one", "two")}


def concerns(**options: Any) -> list[SecurityFinding]:
    return [finding for finding in security_findings(ServerOptions(**options)) if finding.state != "ok"]


@pytest.mark.parametrize(
    ("options", "state", "words"),
    [
        ({"host": "0.0.0.0"}, "problem", "Anyone who can reach 0.0.0.0"),
        ({"host": "0.0.0.0", "allow_unauthenticated": True}, "problem", "Anyone may manage it"),
        ({"allowed_hosts": ("models.example",)}, "problem", "whoever reaches the proxy"),
        ({"host": "0.0.0.0", "api_keys": ("one",)}, "warning", "plain HTTP"),
        ({"host": "0.0.0.0", "api_keys": ("one",)}, "warning", "any Host"),
        (SEVERAL, "warning", "No API key may manage it"),
        (SEVERAL, "warning", "no names, roles or limits"),
        (SEVERAL | {"cache_salt_per_key": False}, "warning", "share a prefix cache"),
        ({"host": "0.0.0.0"}, "warning", "All callers share a prefix cache"),
        ({"open_management": ("/unload",)}, "warning", "/unload"),
        ({"api_keys": ("one",), "open_paths": ("/v1/chat",)}, "warning", "/v1/chat"),
        ({"allowed_origins": ("*",)}, "warning", "Any web page"),
        ({"mcp_config": "mcp.json", "mcp_offer": "always"}, "warning", "every chat"),
        ({"allow_downloads": True}, "warning", "may download a model"),
        (SEVERAL, "warning", "Users without a limit"),
        (
            {"media_hosts": ("camera.lan", "127.0.0.1")},
            "warning",
            "from this machine itself, on any port: 127.0.0.1",
        ),
        ({"media_hosts": ("localhost",)}, "warning", "localhost"),
        ({"media_path": "/srv/pictures"}, "warning", "every file in /srv/pictures"),
        ({"model_defaults": ModelOptions(trust_remote_code=True)}, "warning", "Code of models"),
        ({"api_key_file": "/nonexistent"}, "problem", "can't be used"),
    ],
)
def test_a_risk_is_found(options: dict[str, Any], state: str, words: str) -> None:
    assert any(each.state == state and words in each.text for each in concerns(**options))


def test_a_sound_configuration_is_no_concern(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("root: {key: one, role: admin}\nalice: {key: two, rate_limit: 60}\n")
    path.chmod(0o600)
    assert concerns(api_key_file=str(path), allowed_hosts=("models.example",)) == []
    path.chmod(0o644)
    [found] = concerns(api_key_file=str(path))
    assert found.state == "warning"
    assert str(path) in found.text
    assert "chmod go-rwx" in found.text


def test_limits_of_all_and_named_hosts_are_no_concern() -> None:
    options = SEVERAL | {"rate_limit": 60, "media_hosts": ("camera.lan", "192.168.1.20")}
    told = [each.text for each in security_findings(ServerOptions(**options)) if each.state == "ok"]
    assert "Media may come from camera.lan, 192.168.1.20, also where that is on a private network." in told
    assert not any("Users without a limit" in each.text for each in concerns(**options))
    assert any("1.5 times its plan" in text for text in told)


def test_the_report_of_a_running_server_is_for_administrators(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("root: {key: one, role: admin}\nalice: two\n")

    async def status(key: str | None, **options: Any) -> int:
        async with client_of(application(FakeService(), **options)) as client:
            headers = {} if key is None else {"x-api-key": key}
            reply = await client.get("/v1/security", headers=headers)
            if reply.is_success:
                assert all(each["state"] and each["text"] for each in reply.json()["findings"])
                assert "two" not in reply.text
            return reply.status_code

    filed = {"api_key_file": str(path)}
    asked = [(None, filed), ("two", filed), ("one", filed), (None, {}), (None, {"host": "0.0.0.0"})]
    assert [asyncio.run(status(key, **options)) for key, options in asked] == [401, 403, 200, 200, 403]
