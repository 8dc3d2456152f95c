"""docs/cli.md, written from the verbs' own help."""

import contextlib
import importlib
import io
import re
from typing import Final

from pippin.cli.main import VERBS

HEAD: Final = """<!-- Written by `make docs`; the words are in src/pippin/cli/. -->
# The command line

Every command exits with status 0 if it succeeded, 1 if it failed, and 2 if its arguments were not understood; an error
is one line on standard error. `--help` tells more of each. Commands that talk to a server find the one that runs on
this machine; `--server` or `PIPPIN_SERVER` names another one, `--api-key` or `PIPPIN_API_KEY` its key. Commands that
find models take the options `--config`, `--model-dir` and `--offline` of `serve`. The options of `serve` and `launch`
are in [configuration.md](configuration.md), the flags of other servers in [migrating.md](migrating.md).
"""
USAGE: Final = re.compile(r"\Ausage: pippin \w+ \[-h\].*?\n\n", re.DOTALL)
"""The words of `usage` where they only repeat the options that follow."""
LONG: Final = ("serve", "launch")
EVERYWHERE: Final = re.compile(
    r"^  (?:-h, --help|--(?:server|api-key|config|model-dir) [A-Z_]+|--offline) .*\n(?: {12,}.*\n)*",
    re.MULTILINE,
)
"""Lines of options that the head of the page tells once."""


def cli_page() -> str:
    parts = [HEAD]
    for name in VERBS:
        text = help_of(name)
        if name in LONG:
            text = text[: text.index("\n\noptions:")]
        text = USAGE.sub("", text)
        text = EVERYWHERE.sub("", text).replace("\noptions:\n\n", "\n")
        parts.append(f"## pippin {name}\n\n```\n{text.strip()}\n```\n")
    return "\n".join(parts)


def help_of(name: str) -> str:
    """What `pippin NAME --help` prints, at a fixed width."""
    module = importlib.import_module(f"pippin.cli.verbs.{VERBS[name][0]}")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        module.run(["--help"])
    return shown.getvalue()
