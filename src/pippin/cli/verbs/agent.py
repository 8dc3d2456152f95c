"""`pippin agent`: starts a coding agent (`agents.yaml` lists them) that uses one of Pippin's models."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from msgspec import Struct

from pippin.cli.arguments import KEEP, SERVER, argument, of_catalog, switch, verb
from pippin.cli.terminal import say, table
from pippin.config import environment
from pippin.config.errors import ConfigError, nearest
from pippin.core.decoding import convert
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from pippin.cli.chat.server import Reached

WORD: Final = re.compile(r"\{(address|model|window|output|key|folder)\}")
NUMBER: Final = re.compile(r'"(\{(?:window|output)\})"')
"""A text that is nothing else stands for a number."""
MOST_OUTPUT: Final = 16_384  # most tokens of one answer, for which an agent reserves room in the window
NO_KEY: Final = "none"
FALLBACK_WINDOW: Final = 8_192  # tokens, for models that do not state a window
CLAUDE: Final = "claude-"
ANY_CLAUDE: Final = "claude-opus-5"
EPILOG: Final = (
    "What an agent must be told of the server lies in Pippin's own folder and in variables of its process; your own "
    'files are not written. What follows -- goes to the agent: pippin agent claude -- -p "Fix the tests."'
)


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


class Setup(Struct, frozen=True):
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
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
    finally:
        signal.signal(signal.SIGINT, before)
    return done.returncode


def _filled(text: str, words: dict[str, str]) -> str:
    return WORD.sub(lambda found: words[found[1]], text)


def _text(content: Any, words: dict[str, str]) -> str:
    """A tree as JSON, which readers of YAML take too; or a text, whose quoted words are written as JSON and TOML do."""
    escaped = {name: json.dumps(word)[1:-1] for name, word in words.items()}
    if isinstance(content, str):
        return _filled(content, escaped)
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return _filled(NUMBER.sub(r"\1", text), escaped) + "\n"


@verb(
    "agent",
    argument("name", nargs="?", metavar="NAME", help="the agent; --list shows those that are known"),
    switch("--list", help="show the agents"),
    switch("--print", help="show what would be done, and do nothing"),
    argument("--model", help="the model; the one that is served if not given"),
    switch("--force", help="start with a model that lacks what the agent needs"),
    KEEP,
    *SERVER,
    of_catalog,
    usage="pippin agent NAME [options] [-- ARGUMENTS ...]",
    epilog=EPILOG,
    passes_on=True,
)
def agent(parsed: Namespace) -> int:
    from pippin.cli.chat.server import reached

    known, name = agents(), parsed.name
    if parsed.list or name is None:
        rows = [
            (
                each,
                "yes" if shutil.which(agent.command) else "no",
                f"{agent.window // 1000}k" + (", tools" if agent.tools else ""),
                agent.install,
            )
            for each, agent in known.items()
        ]
        say(table(("AGENT", "HERE", "NEEDS", "INSTALL"), rows))
        return 0
    if name not in known:
        raise ConfigError(
            f"There is no agent `{name}`.{nearest(name, known)} `pippin agent --list` shows them."
        )
    agent = known[name]
    with reached(parsed, parsed.model) as server:
        try:
            check(name, agent, server)
        except ServerError as error:
            if not (parsed.force or parsed.print):
                raise
            say(error.report.message, sys.stderr)
        window = server.facts.get("context_window") or FALLBACK_WINDOW
        folder, key = environment.home() / "agents" / name, server.client.key
        words = words_of(server.client.address, name_for(agent, server), window, key, folder)
        setup = prepare(agent, words, parsed.behind)
        if parsed.print:
            say(setup.shown(key))
            return 0
        for note in agent.notes:
            say(note)
        return start(agent, setup, environment.variables())


def check(name: str, agent: Agent, server: "Reached") -> None:
    """Raise `ServerError` if the model lacks what the agent needs, naming suitable models on this server."""
    lacking = lacks(agent, server.facts)
    if lacking is None:
        return
    others = [
        str(each["id"])
        for each in server.client.request("GET", "/v1/models")["data"]
        if each["id"] != server.model and each.get("kind") == "language" and lacks(agent, each) is None
    ]
    way_out = (
        f"Take {' or '.join(others[:3])}: pippin agent {name} --model {others[0]}."
        if others
        else "`pippin recommend --for code` names models for this machine."
    )
    raise ServerError(
        "invalid_request",
        f"{server.model} {lacking}, which {name} needs. {way_out} --force starts it all the same.",
    )


def name_for(agent: Agent, server: "Reached") -> str:
    """The model's name for the agent, which may take names of Anthropic's models alone. Raises `ServerError`."""
    if not agent.claude_names:
        return server.model
    listed = [str(each["id"]) for each in server.client.request("GET", "/v1/models")["data"]]
    for name in (*(each for each in listed if each.startswith(CLAUDE)), ANY_CLAUDE):
        if server.client.request("GET", f"/v1/models/{name}")["id"] == server.model:
            return name
    raise ServerError(
        "invalid_request",
        f"It takes names of Anthropic's models alone, and {server.model} has none. Start the server with "
        "--list-claude-names.",
    )


def lacks(agent: Agent, facts: dict[str, Any]) -> str | None:
    """What a model lacks for an agent, as the rest of a sentence; None if it lacks nothing."""
    if agent.tools and not (facts.get("capabilities") or {}).get("tools"):
        return "doesn't call tools"
    window = facts.get("context_window")
    if window is not None and window < agent.window:
        return f"has a window of {window} tokens and no room for {agent.window}"
    return None
