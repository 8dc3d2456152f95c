"""`pippin completion`: completes commands, flags and models in a shell."""

from collections.abc import Sequence
from typing import Final

import shtab

from pippin.cli.agents import agents
from pippin.cli.arguments import Parser, actions
from pippin.cli.terminal import say

MODELS: Final = shtab.cmd("pippin list --quiet 2>/dev/null")
"""Completes names of models by asking Pippin for those of this machine."""


def new_parser() -> Parser:
    parser = Parser(
        prog="pippin completion",
        description="Print what makes a shell complete commands, flags and models.",
        epilog='To use it: eval "$(pippin completion bash)" in ~/.bashrc, the same with zsh in ~/.zshrc, or '
        "pippin completion fish > ~/.config/fish/completions/pippin.fish",
    )
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS, help="the shell")
    return parser


def run(arguments: Sequence[str]) -> int:
    shell = new_parser().parse(arguments).shell
    from pippin.cli.main import VERBS, verb_of

    verbs = [verb_of(name).new_parser() for name in VERBS]
    for verb in verbs:
        verb.complete(("model", "models", "words"), complete=MODELS)
        if verb.prog == "pippin agent":
            verb.complete(("name",), choices=sorted(agents()))
    say(shtab.complete(actions("pippin", "Serve MLX models.", verbs), shell).rstrip())
    return 0
