"""`pippin completion`: completes commands, flags and models in a shell."""

from argparse import Namespace
from typing import Final

import shtab

from pippin.cli.arguments import argument, verb, with_actions
from pippin.cli.terminal import say
from pippin.cli.verbs.agent import agents

MODELS: Final = shtab.cmd("pippin list --quiet 2>/dev/null")
"""Completes names of models by asking Pippin for those of this machine."""


@verb(
    "completion",
    argument("shell", choices=shtab.SUPPORTED_SHELLS, help="the shell"),
    epilog='To use it: eval "$(pippin completion bash)" in ~/.bashrc, the same with zsh in ~/.zshrc, or '
    "pippin completion fish > ~/.config/fish/completions/pippin.fish",
)
def completion(parsed: Namespace) -> int:
    from pippin.cli.main import VERBS, verb_of

    parsers = [verb_of(name).new_parser() for name in VERBS]
    for parser in parsers:
        for action in parser._actions:
            if action.dest in ("model", "models", "words"):
                vars(action)["complete"] = MODELS  # which shtab reads, and argparse does not declare
            elif action.dest == "name" and parser.prog == "pippin agent":
                action.choices = sorted(agents())
    say(shtab.complete(with_actions("pippin", "Serve MLX models.", parsers), parsed.shell).rstrip())
    return 0
