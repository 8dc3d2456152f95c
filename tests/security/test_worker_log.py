"""What workers write comes into the server's log: at the default level it holds no prompt, no key and no path."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.serving import Terminal, terminal
from tests.engines.tiny_models import tiny_model

__all__ = ["terminal"]

MARKER = "xyzzy-Kraeuter-42"
SCRIPT = {
    "rules": [
        {"when": {"user": "step"}, "fault": {"kind": "error"}},
        {"when": {"user": "exit"}, "fault": {"kind": "exit"}},
        {"when": {"user": "refuse"}, "error": {"kind": "invalid_request", "message": "No."}},
    ]
}
STRICT = {"name": "x", "strict": True, "schema": {"pattern": f"{MARKER}("}}
WRONG: tuple[dict[str, Any], ...] = (
    {},
    {"response_format": {"type": "json_schema", "json_schema": STRICT}},
    {"guided_json": {"type": MARKER}},
    {"guided_grammar": f"{MARKER} ::= {{{{"},
    {"guided_regex": f"{MARKER}("},
    {"guided_choice": [MARKER, MARKER]},
    {"stop": [MARKER], "n": 2, "seed": 1},
    {"chat_template_kwargs": {MARKER: MARKER}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"pattern": f"{MARKER}("}}}]},
    {"messages": [{"role": "assistant", "content": MARKER}] * 2},
    {"messages": [{"role": "user", "content": f"{MARKER} " * 9000}]},
)  # fmt: skip


@pytest.mark.timeout(180)
def test_nothing_of_a_client_or_of_the_disk_is_in_the_log(terminal: Terminal) -> None:
    folder = terminal.home / MARKER
    folder.mkdir()
    tiny_model("llama", folder / "good")
    damaged(tiny_model("llama", folder / "cut"))
    (tiny_model("llama", folder / "unread") / "tokenizer.json").write_text('{"model": 5}')
    (tiny_model("llama", folder / "lost") / "model.safetensors").unlink()
    (folder / "played.script.json").write_text(json.dumps(SCRIPT))
    (folder / "broken.script.json").write_text(json.dumps({"load_fault": "error"}))
    models = [
        str(folder / name)
        for name in ("good", "cut", "unread", "lost", "played.script.json", "broken.script.json")
    ]
    flags = ("--lazy-load", "--api-key", MARKER, "--prompt-cache-dir", str(folder / "cache"))
    with terminal.serving(*models, *flags) as serving:
        headers = {"authorization": f"Bearer {MARKER}"}
        with httpx.Client(base_url=serving.address, headers=headers, timeout=60) as client:
            replies = [ask(client, {"model": "good", **fields}) for fields in WRONG]
            assert [reply.status_code for reply in replies[:2]] == [200, 400], replies[1].text
            for word in ("step", "exit", "refuse"):
                said = [{"role": "user", "content": f"{word} {MARKER}"}]
                assert ask(client, {"model": "played", "messages": said}).status_code >= 400
            for model in ("cut", "unread", "lost", "broken"):
                refused = ask(client, {"model": model})
                assert refused.status_code == 424
                assert MARKER not in refused.text
    logged = [line for line in serving.output.read_text().splitlines() if not line.startswith("Model: ")]
    assert any("asked for an error in this step" in line for line in logged), (
        "the worker's own lines are here"
    )
    assert sum(bool(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line)) for line in logged) > len(WRONG)
    assert not [line for line in logged if MARKER in line]


def ask(client: httpx.Client, fields: dict[str, Any]) -> httpx.Response:
    plain = {"messages": [{"role": "user", "content": MARKER}], "max_tokens": 2, "user": MARKER}
    return client.post("/v1/chat/completions", json=plain | fields)


def damaged(model: Path) -> None:
    for weights in model.glob("*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:1000])
