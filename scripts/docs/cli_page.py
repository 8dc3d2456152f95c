"""docs/cli.md, written from the verbs' own parsers."""

import contextlib
import io
from typing import Final

from pippin.cli.main import VERBS, verb_of

HEAD: Final = """<!-- Written by `make docs`; the words are in src/pippin/cli/. -->
# The command line

Every command exits with status 0 if it succeeded, 1 if it failed, and 2 if its arguments were not understood; an error
is one line on standard error. `pippin COMMAND --help` explains the arguments and options that are named here; many
commands have `--json`. Commands that talk to a server find the one that runs on this machine; `--server` or
`PIPPIN_SERVER` names another one, `--api-key` or `PIPPIN_API_KEY` its key. Commands that find models take the options
`--config`, `--model-dir` and `--offline` of `serve`. The options of `serve`, which `launch` takes too, are in
[configuration.md](configuration.md), the flags of other servers in [migrating.md](migrating.md).
"""
EVERYWHERE: Final = {"--help", "--server", "--api-key", "--config", "--model-dir", "--offline", "--json"}


def cli_page() -> str:
    return "\n".join([HEAD, *map(_told, VERBS), ""])


def _told(name: str) -> str:
    """A command's arguments, what it does, and the names of its options."""
    parser = verb_of(name).new_parser()
    arguments = ""
    options: list[str] = []
    for action in parser._actions:
        if not action.option_strings:
            words = "|".join(action.choices) if action.choices else str(action.metavar or action.dest).upper()
            arguments += f" [{words}]" if action.nargs in ("?", "*") and "[" not in words else f" {words}"
        elif name != "serve" and action.option_strings[-1] not in EVERYWHERE:
            options.append(f"`{action.option_strings[-1]}`")
    shown = f" {', '.join(options)}" if options else ""
    return f"- `pippin {name}{arguments}`: {parser.description}{shown}"


def help_of(name: str) -> str:
    """What `pippin NAME --help` prints, at a fixed width."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        verb_of(name).run(["--help"])
    return shown.getvalue()
