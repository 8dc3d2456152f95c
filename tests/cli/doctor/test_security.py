"""`pippin doctor --security`: what it says of a server that it tries."""

import json

from tests.cli.serving import Terminal, terminal

__all__ = ["terminal"]


def doctor(terminal: Terminal, *words: str) -> dict[str, str]:
    done = terminal.run("doctor", "--security", "--json", *words)
    return {finding["text"]: finding["state"] for finding in json.loads(done.stdout)}


def test_the_doctor_asks_the_server_as_a_stranger(terminal: Terminal) -> None:
    with terminal.serving("--api-key", "k-root") as serving:
        base = serving.address
        found = doctor(terminal, "--api-key", "k-root")
    for refused in (
        "refuses a web page of another origin",
        "answers nobody without a key",
        "lets nobody manage it without a key",
    ):
        assert found[f"{base} {refused}."] == "ok"
    assert "k-root" not in str(found)


def test_a_server_without_keys_is_told_to_be_anyones(terminal: Terminal) -> None:
    alone = doctor(terminal)
    assert set(alone.values()) == {"ok"}
    assert "No server runs here; name one with --server." in alone
    with terminal.serving() as serving:
        found = doctor(terminal)
    told = f"{serving.address} lets anyone who reaches it manage it, as no key is set."
    assert found[told] == "warning"
