"""docs/cli.md, written from the verbs' own help."""

import contextlib
import importlib
import io
from typing import Final

from pippin.cli.main import VERBS, overview

HEAD: Final = """<!-- Written by `make docs`; the words are in src/pippin/cli/. -->
# The command line

Every command ends with status 0 when it did what it says, 1 when it could not, and 2 when it was not understood; what
went wrong is one line on standard error. `pippin ps`, `load`, `unload`, `cache` and `stop` find the server that runs
here by themselves; `--server` or `PIPPIN_SERVER` names another, `--api-key` or `PIPPIN_API_KEY` its key. The options of
`serve` and `launch` are on [their own page](configuration.md), the flags of other servers [on theirs](migrating.md).
"""
LONG: Final = ("serve", "launch")


def cli_page() -> str:
    parts = [HEAD, f"```\n{overview()}\n```\n"]
    for name in VERBS:
        text = help_of(name)
        if name in LONG:
            text = text[: text.index("\n\noptions:")]
        parts.append(f"## pippin {name}\n\n```\n{text.strip()}\n```\n")
    return "\n".join(parts)


def help_of(name: str) -> str:
    """What `pippin NAME --help` prints, at a fixed width."""
    module = importlib.import_module(f"pippin.cli.verbs.{VERBS[name][0]}")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        module.run(["--help"])
    return shown.getvalue()
