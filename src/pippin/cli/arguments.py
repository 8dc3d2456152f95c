"""The argument parsers of the verbs: one with single-line errors, and one built from the options."""

import argparse
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any, Final, NoReturn

from pippin.cli.main import VERBS
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

    def __init__(self, prog: str, description: str, **settings: Any) -> None:
        # Help has the same width on every terminal.
        wide = partial(argparse.HelpFormatter, width=WIDTH, max_help_position=34)
        super().__init__(prog, description=description, allow_abbrev=False, formatter_class=wide, **settings)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[:1].upper()}{message[1:].rstrip('.')}. See `{self.prog} --help`.")

    def parse(self, arguments: Sequence[str], found: argparse.Namespace | None = None) -> argparse.Namespace:
        """Parse all arguments into what is `found` already. Raises `ConfigError` for an unknown flag."""
        parsed, unknown = self.parse_known_intermixed_args(list(arguments), found)
        if unknown:
            word = unknown[0].partition("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            wrong = f"no such flag.{nearest(word, known)}" if word.startswith("-") else "one word too many."
            raise ConfigError(f"{word}: {wrong} See `{self.prog} --help`.")
        return parsed


@dataclass(frozen=True)
class Verb:
    """A verb: its parser, and what it does with the arguments. It returns the exit status: 0 done, 1 failed, 2 usage
    error."""

    new_parser: Callable[[], Parser]
    act: Callable[[argparse.Namespace], int]
    passes_on: bool = False
    """The words after `--` are for another program: `behind` has them."""

    def run(self, arguments: Sequence[str]) -> int:
        words = list(arguments)
        cut = words.index("--") if self.passes_on and "--" in words else len(words)
        parsed = self.new_parser().parse(words[:cut])
        parsed.behind = tuple(words[cut + 1 :])
        return self.act(parsed)


Part = Callable[[Parser], object]
"""Adds one or several arguments to a parser."""


def verb(
    name: str,
    *parts: Part,
    description: str | None = None,
    parser: Callable[..., Parser] = Parser,
    passes_on: bool = False,
    **settings: str,
) -> Callable[[Callable[[argparse.Namespace], int]], Verb]:
    """Makes a verb of the function that does it; its help shows the arguments in the order of `parts`, under the text
    of `VERBS` if there is no other `description`."""

    def new_parser() -> Parser:
        made = parser(f"pippin {name}", description or f"{VERBS[name][1]}.", **settings)
        for add in parts:
            add(made)
        return made

    return lambda act: Verb(new_parser, act, passes_on)


def argument(*names: str, **how: Any) -> Part:
    """An argument, described as for argparse."""
    return methodcaller("add_argument", *names, **how)


def number(*names: str, least: float, kind: Callable[[str], float] = int, **how: Any) -> Part:
    """A number of this kind, from `least` on."""

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            if least <= (given := kind(text)) < math.inf:
                return given
        raise argparse.ArgumentTypeError(f"{text} is no {'whole ' if kind is int else ''}number from {least}")

    return argument(*names, type=read, **how)


def switch(*names: str, help: str) -> Part:
    return argument(*names, action="store_true", help=help)


SERVER: Final = (
    argument("--server", help="address of the server; the one running here if not given"),
    argument("--api-key", help="key to show it; PIPPIN_API_KEY if not given"),
)
JSON: Final = switch("--json", help="as JSON")
CLIENT: Final = (*SERVER, JSON)
"""What verbs take that ask the running server."""
KEEP: Final = switch("--keep", help="keep a server that was started for this")


def of_catalog(parser: Parser) -> None:
    """Add the options that say where models are found."""
    parser.set_defaults(given=[])
    for name in ("config", "model_dirs", "offline"):
        option = options()[name]
        _add(parser, flags()[option.flag], _help(option))


@dataclass(frozen=True)
class Actions:
    """A verb with actions, which are verbs themselves, named "VERB ACTION"."""

    name: str
    verbs: Mapping[str, Verb]

    def new_parser(self) -> Parser:
        parsers = [verb.new_parser() for verb in self.verbs.values()]
        return with_actions(f"pippin {self.name}", f"{VERBS[self.name][1]}.", parsers)

    def run(self, arguments: Sequence[str]) -> int:
        """Run the action that the first word names; without one, show the actions."""
        if not arguments or arguments[0] in ("-h", "--help"):
            self.new_parser().print_help()
            return 0 if arguments else 2
        if arguments[0] not in self.verbs:
            raise ConfigError(
                f"`pippin {self.name} {arguments[0]}`: its actions are {', '.join(self.verbs)}."
            )
        return self.verbs[arguments[0]].run(arguments[1:])


def with_actions(program: str, description: str, parsers: Sequence[Parser]) -> Parser:
    """A parser of a program with actions, each of which has a parser of its own named "PROGRAM ACTION"."""
    parser = Parser(program, description)
    places = parser.add_subparsers()
    for each in parsers:
        told = each.description or ""
        places.add_parser(each.prog.split()[-1], help=told, description=told, parents=[each], add_help=False)
    return parser


class ShortHelp(argparse.Action):
    """Shows the options that matter most; `--help-all` shows all."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
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
    parser = Parser(program, description, usage=usage, epilog=FOREIGN, add_help=False)
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
