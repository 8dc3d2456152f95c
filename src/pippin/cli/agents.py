"""Coding agents: reads which there are (`agents.yaml`), fills in one for a server and model, and starts it."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from pippin.core.decoding import convert
from pippin.core.errors import ServerError

WORD: Final = re.compile(r"\{(address|model|window|output|key|folder)\}")
NUMBERS: Final = ("{window}", "{output}")
MOST_OUTPUT: Final = 16_384  # most tokens of one answer, for which an agent reserves room in the window
NO_KEY: Final = "none"


class Agent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent, as `agents.yaml` describes it."""

    command: str
    install: str
    window: int
    variables: dict[str, str] = {}
    arguments: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    files: dict[str, Any] = {}
    tools: bool = True
    claude_names: bool = False
    unset: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@cache
def agents() -> dict[str, Agent]:
    text = resources.files("pippin.cli").joinpath("agents.yaml").read_text("utf-8")
    return convert(yaml.safe_load(text), dict[str, Agent])


def words_of(address: str, model: str, window: int, key: str | None, folder: Path) -> dict[str, str]:
    """What stands for the placeholders: the server's address (without /v1) and key, the model and its window in tokens,
    prompt and answer together, and the agent's folder inside Pippin's."""
    return {
        "address": address,
        "model": model,
        "window": str(window),
        "output": str(min(window // 4, MOST_OUTPUT)),
        "key": key or NO_KEY,
        "folder": str(folder),
    }


@dataclass(frozen=True)
class Setup:
    """Everything needed to start an agent."""

    command: tuple[str, ...]
    variables: dict[str, str]
    unset: tuple[str, ...]
    files: dict[Path, str]

    def shown(self, key: str | None) -> str:
        """The setup as shell commands; the key is replaced by its variable."""

        def hidden(text: str) -> str:
            return text.replace(key, "$PIPPIN_API_KEY") if key else text

        lines = []
        for path, text in self.files.items():
            lines += [f"# {path}", *(f"#   {line}" for line in hidden(text).splitlines())]
        lines += [f"unset {name}" for name in self.unset]
        for name, value in self.variables.items():
            secret = key is not None and value == key
            lines.append(f"export {name}=" + ('"$PIPPIN_API_KEY"' if secret else shlex.quote(hidden(value))))
        return "\n".join([*lines, shlex.join(self.command)])


def prepare(agent: Agent, words: dict[str, str], arguments: tuple[str, ...] = ()) -> Setup:
    """The setup of an agent, without carrying it out."""
    return Setup(
        command=(
            agent.command,
            *(_filled(text, words) for text in agent.arguments),
            *(arguments or agent.alone),
        ),
        variables={name: _filled(text, words) for name, text in agent.variables.items()},
        unset=agent.unset,
        files={Path(words["folder"], name): _text(content, words) for name, content in agent.files.items()},
    )


def start(agent: Agent, setup: Setup, environment: Mapping[str, str]) -> int:
    """Write the files, run the agent, and return its exit status. Raises `ServerError` if it is not installed."""
    program = shutil.which(agent.command, path=environment.get("PATH"))
    if program is None:
        raise ServerError(
            "not_found", f"`{agent.command}` is not installed. Install it, and try again: {agent.install}"
        )
    for path, text in setup.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it may contain the key
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    inherited = {name: value for name, value in environment.items() if name not in setup.unset}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is the agent's
    try:
        done = subprocess.run(
            [program, *setup.command[1:]],
            env={**inherited, **setup.variables},
            check=False,
            preexec_fn=_interruptible,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    return done.returncode


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _filled(text: str, words: dict[str, str]) -> str:
    return WORD.sub(lambda found: words[found[1]], text)


def _text(content: Any, words: dict[str, str]) -> str:
    """A tree as JSON, which readers of YAML take too; or a text, whose quoted words are written as JSON and TOML do."""
    if isinstance(content, str):
        return _filled(content, {name: json.dumps(word)[1:-1] for name, word in words.items()})
    return json.dumps(_tree(content, words), indent=2, ensure_ascii=False) + "\n"


def _tree(value: Any, words: dict[str, str]) -> Any:
    """The tree with its placeholders filled in."""
    match value:
        case str() if value in NUMBERS:
            return int(_filled(value, words))
        case str():
            return _filled(value, words)
        case dict():
            return {_filled(name, words): _tree(item, words) for name, item in value.items()}
        case list():
            return [_tree(item, words) for item in value]
        case _:
            return value
