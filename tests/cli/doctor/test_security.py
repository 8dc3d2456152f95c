"""`pippin doctor --security`: what it says of the configuration, and of a server that it asks and tries."""

import json

from tests.cli.serving import Terminal, terminal

__all__ = ["terminal"]


def doctor(terminal: Terminal, *words: str) -> dict[str, str]:
    done = terminal.run("doctor", "--security", "--json", *words)
    return {finding["text"]: finding["state"] for finding in json.loads(done.stdout)}


def test_the_doctor_asks_the_server_as_an_administrator_and_as_a_stranger(terminal: Terminal) -> None:
    keys = terminal.home / "keys.yaml"
    keys.write_text("root: {key: k-root, role: admin}\nalice: {key: k-alice, rate_limit: 60}\n")
    keys.chmod(0o644)
    with terminal.serving("--api-key-file", "keys.yaml") as serving:
        base = serving.address
        found = doctor(terminal, "--api-key", "k-root")
        untold = doctor(terminal, "--api-key", "k-alice")
    assert found[f"{base}: 2 API keys: administrators root; 1 of users."] == "ok"
    assert found[f"{base}: Each key has a prefix cache of its own."] == "ok"
    [unsafe] = [text for text, state in found.items() if state != "ok"]
    assert "keys.yaml (keys)" in unsafe
    for refused in (
        "refuses a web page of another origin",
        "answers nobody without a key",
        "lets nobody manage it without a key",
    ):
        assert found[f"{base} {refused}."] == "ok"
    assert any("does not tell of itself" in text for text, state in untold.items() if state == "warning")
    assert "k-root" not in str(found) + str(untold)


def test_a_server_without_keys_is_told_to_be_anyones(terminal: Terminal) -> None:
    alone = doctor(terminal)
    assert set(alone.values()) == {"ok"}
    assert "No server runs here; name one with --server." in alone
    with terminal.serving() as serving:
        found = doctor(terminal)
    told = f"{serving.address} lets anyone who reaches it manage it, as no key is set."
    assert found[told] == "warning"
