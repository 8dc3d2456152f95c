"""`pippin completion`: completes commands, flags and models in a shell."""

import importlib
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Final

from pippin.cli.arguments import Parser
from pippin.cli.terminal import say

TAKES_MODELS: Final = ("serve", "run", "fit", "show", "rm", "load", "unload", "bench")
SHELLS: Final = ("bash", "zsh", "fish")
FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")

BASH: Final = """\
_pippin() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" verb="${{COMP_WORDS[1]}}"
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{verbs}" -- "$word"))
        return
    fi
    local flags="" words=""
    case "$verb" in
{cases}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
        *) case " {takers} " in
               *" $verb "*) words="$(pippin list --quiet 2>/dev/null)" ;;
           esac
           case "$verb" in
{words}
           esac
           COMPREPLY=($(compgen -W "$words" -- "$word"))
           [ "${{#COMPREPLY[@]}}" -gt 0 ] || COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}}
complete -o filenames -F _pippin pippin
"""
ZSH: Final = "autoload -U +X bashcompinit && bashcompinit\n"
FISH: Final = """\
complete -c pippin -f -n __fish_use_subcommand -a "{verbs}"
complete -c pippin -n "__fish_seen_subcommand_from {takers}" -a "(pippin list --quiet 2>/dev/null)"
"""


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="pippin completion",
        description="Print what makes a shell complete commands, flags and models.",
        epilog='To use it: eval "$(pippin completion bash)" in ~/.bashrc, the same with zsh in ~/.zshrc, or '
        "pippin completion fish > ~/.config/fish/completions/pippin.fish",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    shell = parser.parse(arguments).shell
    from pippin.cli.main import VERBS

    known = {name: flags_of(name, module) for name, (module, _) in VERBS.items()}
    say((_fish if shell == "fish" else _bash)(known, zsh=shell == "zsh").rstrip())
    return 0


def flags_of(name: str, module: str) -> list[str]:
    """The flags in a verb's help."""
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(io.StringIO()), suppress(SystemExit):
        importlib.import_module(f"pippin.cli.verbs.{module}").run(["--help"])
    return sorted(set(FLAG.findall(shown.getvalue())))


def _words() -> dict[str, Sequence[str]]:
    """The choices for a verb's first argument, for verbs with few choices."""
    from pippin.cli.agents.table import AGENTS

    return {"agent": sorted(AGENTS), "completion": SHELLS}


def _bash(known: dict[str, list[str]], *, zsh: bool) -> str:
    cases = "\n".join(f'        {name}) flags="{" ".join(flags)}" ;;' for name, flags in known.items())
    words = "\n".join(
        f'               {verb}) words="{" ".join(names)}" ;;' for verb, names in _words().items()
    )
    text = BASH.format(verbs=" ".join(known), cases=cases, takers=" ".join(TAKES_MODELS), words=words)
    return ZSH + text if zsh else text


def _fish(known: dict[str, list[str]], *, zsh: bool) -> str:
    lines = [FISH.format(verbs=" ".join(known), takers=" ".join(TAKES_MODELS))]
    lines += [
        f'complete -c pippin -f -n "__fish_seen_subcommand_from {verb}" -a "{" ".join(names)}"'
        for verb, names in _words().items()
    ]
    lines += [
        f'complete -c pippin -n "__fish_seen_subcommand_from {name}" -l {flag.removeprefix("--")}'
        for name, flags in known.items()
        for flag in flags
    ]
    return "\n".join(lines)
