"""`pippin agent`: starts a coding agent that uses one of Pippin's models."""

import shutil
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final

from pippin.cli.arguments import KEEP, SERVER, argument, of_catalog, switch, verb
from pippin.cli.terminal import say, table
from pippin.config import environment
from pippin.config.errors import ConfigError, nearest
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from pippin.cli.agents import Agent
    from pippin.cli.chat.server import Reached

FALLBACK_WINDOW: Final = 8_192  # tokens, for models that do not state a window
CLAUDE: Final = "claude-"
ANY_CLAUDE: Final = "claude-opus-5"
EPILOG: Final = (
    "What an agent must be told of the server lies in Pippin's own folder and in variables of its process; your own "
    'files are not written. What follows -- goes to the agent: pippin agent claude -- -p "Fix the tests."'
)


@verb(
    "agent",
    "Start a coding agent that uses a model of the running server, or of one started for it.",
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
    from pippin.cli.agents import agents

    known = agents()
    if parsed.list or parsed.name is None:
        say(_listed(known))
        return 0
    if parsed.name not in known:
        raise ConfigError(
            f"There is no agent `{parsed.name}`.{nearest(parsed.name, known)} `pippin agent --list` shows them."
        )
    return _run(parsed.name, known[parsed.name], parsed)


def _listed(agents: "dict[str, Agent]") -> str:
    rows = [
        (
            name,
            "yes" if shutil.which(agent.command) else "no",
            f"{agent.window // 1000}k" + (", tools" if agent.tools else ""),
            agent.install,
        )
        for name, agent in agents.items()
    ]
    return table(("AGENT", "HERE", "NEEDS", "INSTALL"), rows)


def _run(name: str, agent: "Agent", parsed: Namespace) -> int:
    from pippin.cli.agents import prepare, start, words_of
    from pippin.cli.chat.server import reached

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


def check(name: str, agent: "Agent", server: "Reached") -> None:
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


def name_for(agent: "Agent", server: "Reached") -> str:
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


def lacks(agent: "Agent", facts: dict[str, Any]) -> str | None:
    """What a model lacks for an agent, as the rest of a sentence; None if it lacks nothing."""
    if agent.tools and not (facts.get("capabilities") or {}).get("tools"):
        return "doesn't call tools"
    window = facts.get("context_window")
    if window is not None and window < agent.window:
        return f"has a window of {window} tokens and no room for {agent.window}"
    return None
