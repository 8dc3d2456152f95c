"""Claude Code itself says something new as the system after results of tools: what was computed before stays good.

A scripted model has the real program use its tools; what it sent is then sent again, as it was, to a language engine
whose template takes a system message at the beginning alone.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pippin.api.dialects.base import DecodeContext, Decoded
from pippin.api.dialects.messages.dialect import MessagesDialect
from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas
from tests.agents.agents import claude_code
from tests.agents.wide_model import TEMPLATE, wide_model
from tests.api.scripted_server import scripted_server
from tests.running_server import running_server

ASKED: Final = "please read the notes"
COMMANDS: Final = ("cat note.txt", "ls", "pwd")
RULES: Final = (
    *(
        {
            "when": {"user": ".", "tools": ["Bash"], "turn": turn},
            "say": f"Step {turn}.",
            "calls": [{"name": "Bash", "arguments": {"command": command, "description": "Look"}}],
        }
        for turn, command in enumerate(COMMANDS, 1)
    ),
    {"when": {"user": "."}, "say": "All read."},
)
STRICT: Final = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}" + TEMPLATE
)

pytestmark = [pytest.mark.long, pytest.mark.model, pytest.mark.timeout(1800)]


@pytest.fixture
def bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Claude Code sends in a session of several tool calls, with its reminders on."""
    sent: list[dict[str, Any]] = []
    decode = MessagesDialect.decode

    def listening(self: MessagesDialect, body: bytes, context: DecodeContext) -> Decoded[Any]:
        decoded = decode(self, body, context)
        if decoded.requests[0].tools:
            sent.append(json.loads(body))
        return decoded

    monkeypatch.setattr(MessagesDialect, "decode", listening)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "note.txt").write_text("marker-4711\n")
    with scripted_server(tmp_path, *RULES, context_window=200_000) as address:
        said = claude_code(address, "claude-sonnet-4-5", tmp_path, ASKED, reminders=True)
    assert said.strip() == "All read."
    return sent


@pytest.fixture
def address(tmp_path: Path, demo_model: Path) -> Iterator[str]:
    accelerate_blas(ModelOptions(), 1)
    folder = wide_model(tmp_path / "wide", demo_model)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": STRICT}))
    home = tmp_path / "server"
    home.mkdir()
    with running_server(home, str(folder)) as found:
        yield found


def test_all_but_the_last_turn_of_claude_code_is_cached(address: str, bodies: list[dict[str, Any]]) -> None:
    assert len(bodies) == len(COMMANDS) + 1
    late = [message for message in bodies[-1]["messages"] if message["role"] == "system"]
    usages = []
    for body in bodies:
        body |= {"model": "wide", "max_tokens": 4, "stream": False, "temperature": 0}
        reply = httpx.post(address + "/v1/messages", json=body, timeout=900)
        assert reply.status_code == 200, reply.text
        usages.append(reply.json()["usage"])
    print(f"late system messages: {len(late)}; {usages}")
    lengths = [
        usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        for usage in usages
    ]
    for before, usage in zip(lengths, usages[1:], strict=False):
        # The prompt before ends with the words that open an answer, and the last block is not whole.
        assert usage["cache_read_input_tokens"] >= before - 40, (lengths, usages)
    assert late, "Claude Code says nothing as the system any more: this test shows nothing"
