"""The argument parsers of the verbs: one with single-line errors, and one built from the options."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from pippin.config.errors import ConfigError, nearest
from pippin.config.flags import POSITIONAL, Flag, flags
from pippin.config.options.declaration import Option, options
from pippin.config.settings import GivenFlag

WIDTH: Final = 100

USUAL: Final = (
    *("config", "compat", "host", "port", "api_keys", "model_dirs"),
    *("memory_budget_gb", "idle_timeout", "context_length", "max_tokens", "kv_bits", "mcp_config"),
)
"""The options that `pippin serve --help` shows."""

FOREIGN = (
    "The flags of the servers that --compat names are understood too: "
    "see docs/migrating.md. Every option is also a variable (PIPPIN_PORT) and a key of the YAML file (port)."
)


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, with the nearest valid name."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_formatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[:1].upper()}{message[1:].rstrip('.')}. See `{self.prog} --help`.")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments. Raises `ConfigError` for an unknown flag."""
        parsed, unknown = self.parse_known_intermixed_args(list(arguments))
        if unknown:
            word = unknown[0].partition("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            raise ConfigError(f"{word}: no such flag.{nearest(word, known)} See `{self.prog} --help`.")
        return parsed

    def complete(self, names: Sequence[str], **how: Any) -> None:
        """Say how a shell completes arguments: `how` are attributes of an action that `shtab` reads."""
        for action in self._actions:
            if action.dest in names:
                for name, value in how.items():
                    setattr(action, name, value)


@dataclass(frozen=True)
class Verb:
    """A verb of a module that has several: its parser, and what it does with the arguments."""

    new_parser: Callable[[], Parser]
    act: Callable[[argparse.Namespace], int]

    def run(self, arguments: Sequence[str]) -> int:
        return self.act(self.new_parser().parse(arguments))


def actions(program: str, description: str, parsers: Sequence[Parser]) -> Parser:
    """A parser of a verb with actions, each of which has a parser of its own named "PROGRAM ACTION"."""
    parser = Parser(prog=program, description=description)
    places = parser.add_subparsers()
    for each in parsers:
        told = each.description
        places.add_parser(each.prog.split()[-1], help=told, description=told, parents=[each], add_help=False)
    return parser


def dispatch(
    parser: Parser, arguments: Sequence[str], does: Mapping[str, Callable[[Sequence[str]], int]]
) -> int:
    """Run the action that the first word names; without one, show the actions."""
    if not arguments or arguments[0] in ("-h", "--help"):
        parser.print_help()
        return 0 if arguments else 2
    if arguments[0] not in does:
        raise ConfigError(f"`{parser.prog} {arguments[0]}`: its actions are {', '.join(does)}.")
    return does[arguments[0]](arguments[1:])


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Formats help in the same width on every terminal."""
    return argparse.HelpFormatter(prog, width=WIDTH, max_help_position=34)


class ShortHelp(argparse.Action):
    """Shows the options that matter most; `--help-all` shows all."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: object,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        usual = {options()[name].flag for name in USUAL}
        for action in parser._actions:
            if action.dest == "given" and usual.isdisjoint(action.option_strings):
                action.help = argparse.SUPPRESS
        parser.print_help()
        parser.exit()


class Collect(argparse.Action):
    """Keeps flags as they were given, in order, for `config` to read."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        given: list[GivenFlag] = namespace.given
        name = option_string or POSITIONAL
        if isinstance(values, str):
            given.append(GivenFlag(name, values))
        elif values:
            given.extend(GivenFlag(name, str(value)) for value in values)
        elif option_string:
            given.append(GivenFlag(name))


def option_parser(program: str, description: str) -> Parser:
    """A parser of every option's flag, and of the replaced servers' flags, which are not in the help."""
    usage = f"{program} [MODEL ...] [options]"  # listing all options would fill the screen
    parser = Parser(prog=program, usage=usage, description=description, epilog=FOREIGN, add_help=False)
    parser.set_defaults(given=[])
    parser.add_argument("-h", "--help", nargs=0, action=ShortHelp, help="show the options that matter most")
    parser.add_argument("--help-all", action="help", help="show all options")
    parser.add_argument(
        "models",
        metavar=POSITIONAL,
        nargs="*",
        action=Collect,
        help="models to serve: folders, repository ids, aliases or names; without one, those that requests name",
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for flag in flags().values():
        if flag.option is None:
            _add(parser, flag, argparse.SUPPRESS)
            continue
        if flag.option.section not in groups:
            groups[flag.option.section] = parser.add_argument_group(flag.option.section)
        negative = flag.name.startswith("--no-") and flag.option.flag != flag.name
        _add(groups[flag.option.section], flag, argparse.SUPPRESS if negative else _help(flag.option))
    return parser


def some_options(parser: Parser, names: Sequence[str]) -> None:
    """Add the flags of some options, for verbs that need only those."""
    parser.set_defaults(given=[])
    for name in names:
        option = options()[name]
        _add(parser, flags()[option.flag], _help(option))


def _add(group: argparse._ActionsContainer, flag: Flag, help: str) -> None:
    nargs = {"value": None, "switch": 0, "words": "+"}[flag.takes]
    metavar = None if flag.takes == "switch" else _metavar(flag)
    group.add_argument(flag.name, nargs=nargs, action=Collect, dest="given", help=help, metavar=metavar)


def _metavar(flag: Flag) -> str:
    if flag.option is None:
        return "VALUE"
    if flag.option.choices:
        return "{" + ",".join(flag.option.choices) + "}"
    return "NAME=VALUE" if flag.option.shape == "mapping" else flag.name.rpartition("-")[2].upper()


def _help(option: Option) -> str:
    default = option.default
    if default in (None, (), {}) or option.shape == "switch":
        shown = " (default: on; --no-... switches it off)" if default is True else ""
    else:
        shown = f" (default: {default})"
    return (option.help + shown).replace("%", "%%")
