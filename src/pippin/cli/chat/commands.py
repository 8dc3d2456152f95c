"""The slash commands of `pippin run`."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from pippin.config.errors import ConfigError, nearest

Name = Literal[
    "help",
    "model",
    "system",
    "attach",
    "save",
    "load",
    "new",
    "undo",
    "retry",
    "tools",
    "think",
    "stats",
    "bye",
]

HELP: Final[dict[Name, tuple[str, str]]] = {
    "help": ("", "show this"),
    "model": ("[NAME]", "show the models, or talk to another one; the conversation goes on"),
    "system": ("[TEXT]", "show the system prompt, or set it; `/system -` takes it away"),
    "attach": ("PATH", "send a picture, a recording, a clip or a text file with the next question"),
    "save": ("NAME", "keep the conversation: a name, or the path of a .json file"),
    "load": ("[NAME]", "go on with a conversation that was kept; without a name, show them"),
    "new": ("", "begin anew, with the same model and system prompt"),
    "undo": ("", "forget the last question and its answer"),
    "retry": ("", "ask the last question again"),
    "tools": ("[on|off]", "show the tools of MCP servers, or offer them to the model"),
    "think": (
        "[on|off|low|medium|high|show|hide]",
        "let the model think or not, how much, and whether it is shown",
    ),
    "stats": ("[on|off]", "what the last answer took; `on` says it after each"),
    "bye": ("", "leave; so does ctrl-D"),
}
OTHER_NAMES: Final[dict[str, Name]] = {
    "?": "help",
    "exit": "bye",
    "quit": "bye",
    "clear": "new",
    "file": "attach",
}


@dataclass(frozen=True)
class Command:
    name: Name
    rest: str = ""


def read_command(line: str) -> Command | None:
    """The command in a line; None if the line is for the model, such as `/etc/hosts is ...`.

    Raises `ConfigError` for an unknown command.
    """
    if not line.startswith("/"):
        return None
    word, _, rest = line[1:].partition(" ")
    word = word.strip().lower()
    if "/" in word or not word:
        return None
    known = OTHER_NAMES.get(word, word)
    for name in get_args(Name):
        if name == known:
            return Command(name, rest.strip())
    raise ConfigError(f"There is no command /{word}.{nearest(word, [*HELP, *OTHER_NAMES])} /help shows them.")


def help_text() -> str:
    uses = {f"/{name} {form}".strip(): does for name, (form, does) in HELP.items()}
    width = max(len(use) for use in uses if len(use) < 30) + 2
    lines = [
        f"{use:<{width}}{does}" if len(use) < 30 else f"{use}\n{'':<{width}}{does}"
        for use, does in uses.items()
    ]
    return "\n".join(
        [
            *lines,
            "",
            '"""                 begins and ends a text of several lines; alt-enter begins a new line',
            "@PATH               attaches a file; a picture's, recording's or clip's path does without the @",
            "ctrl-C              stops the answer; what came stays",
        ]
    )
