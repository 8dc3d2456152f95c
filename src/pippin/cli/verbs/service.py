"""`pippin service`: a launchd agent or systemd user unit that runs `pippin serve` at login."""

import os
import plistlib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pippin.cli.arguments import Parser, actions, option_parser
from pippin.cli.local import open_catalog, settings_of
from pippin.cli.verbs import serve
from pippin.config import environment
from pippin.config.errors import ConfigError
from pippin.core.errors import ServerError

LABEL: Final = "dev.pippin.server"
UNIT: Final = "pippin.service"
PLAIN: Final = re.compile(r"[A-Za-z0-9_./:=@,+%$-]+")
SECONDS_TO_DRAIN: Final = 60


@dataclass(frozen=True)
class Launchd:
    def path(self, home: Path) -> Path:
        return home / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def text(self, command: Sequence[str], home: Path, variables: Mapping[str, str]) -> str:
        log = str(home / "Library" / "Logs" / "pippin.log")
        agent = {
            "Label": LABEL,
            "ProgramArguments": list(command),
            "EnvironmentVariables": dict(variables),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 1,  # seconds before it is started again
            "ExitTimeOut": SECONDS_TO_DRAIN,
            "ProcessType": "Interactive",  # not throttled as background work
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
        return plistlib.dumps(agent).decode()

    def start(self, path: Path) -> list[list[str]]:
        return [["launchctl", "bootstrap", _domain(), str(path)]]

    def stop(self, path: Path) -> list[list[str]]:
        return [["launchctl", "bootout", f"{_domain()}/{LABEL}"]]

    def status(self) -> list[str]:
        return ["launchctl", "print", f"{_domain()}/{LABEL}"]


@dataclass(frozen=True)
class Systemd:
    def path(self, home: Path) -> Path:
        return home / ".config" / "systemd" / "user" / UNIT

    def text(self, command: Sequence[str], home: Path, variables: Mapping[str, str]) -> str:
        return (
            "[Unit]\n"
            "Description=Pippin, a server for MLX models\n"
            "After=network.target\n\n"
            "[Service]\n"
            + "".join(f"Environment={_word(f'{name}={value}')}\n" for name, value in variables.items())
            + f"ExecStart={_quoted(command)}\n"
            "Restart=on-failure\n"
            # A usage error does not go away by a restart.
            "RestartPreventExitStatus=2\n"
            f"TimeoutStopSec={SECONDS_TO_DRAIN}\n"
            "KillMode=mixed\n"
            # The server survives and restarts a worker that the kernel killed.
            "OOMPolicy=continue\n"
            "UMask=0077\n"
            "NoNewPrivileges=yes\n\n"
            "[Install]\n"
            "WantedBy=default.target\n"
        )

    def start(self, path: Path) -> list[list[str]]:
        return [["systemctl", "--user", "daemon-reload"], ["systemctl", "--user", "enable", "--now", UNIT]]

    def stop(self, path: Path) -> list[list[str]]:
        return [["systemctl", "--user", "disable", "--now", UNIT]]

    def status(self) -> list[str]:
        return ["systemctl", "--user", "--no-pager", "status", UNIT]


Manager = Launchd | Systemd


def _domain() -> str:
    return f"gui/{os.getuid()}"


def _quoted(words: Sequence[str]) -> str:
    """Words quoted as a command line for systemd, where `$` is special, unlike in `Environment=`."""
    return " ".join(_word(word).replace("$", "$$") for word in words)


def _word(word: str) -> str:
    """Quotes a word as a whole; `%` is special everywhere in systemd's files."""
    word = word.replace("%", "%%")
    if PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


USAGE: Final = """usage: pippin service install [--dry-run] [the arguments of `pippin serve`]
       pippin service status
       pippin service uninstall [--dry-run]

Runs `pippin serve` at login and again if it ends: as a launchd agent on macOS, as a systemd user unit on Linux.
"""


def new_parser() -> Parser:
    parsers = (_install_parser(), _status_parser(), _uninstall_parser())
    return actions("pippin service", "Run `pippin serve` at login.", parsers)


def _install_parser() -> Parser:
    parser = option_parser("pippin service install", "Run `pippin serve` at login.")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    return parser


def _status_parser() -> Parser:
    return Parser(prog="pippin service status", description="Whether the service is installed and runs.")


def _uninstall_parser() -> Parser:
    parser = Parser(prog="pippin service uninstall", description="Stop the service and remove it.")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    return parser


def run(arguments: Sequence[str]) -> int:
    match list(arguments):
        case ["install", *rest]:
            return _install(rest)
        case ["status", *rest]:
            return _status(rest)
        case ["uninstall", *rest]:
            return _uninstall(rest)
        case [] | ["-h" | "--help", *_]:
            print(USAGE, end="")
            return 0 if arguments else 2
        case [word, *_]:
            raise ConfigError(f"`pippin service {word}`: there are install, status and uninstall.")
    return 2


def manager() -> Manager:
    return Launchd() if sys.platform == "darwin" else Systemd()


def _install(words: Sequence[str]) -> int:
    """Install the service. The arguments are checked now, so that it does not fail at the next login."""
    parsed = _install_parser().parse(words)
    arguments = [word for word in words if word != "--dry-run"]
    settings = settings_of(parsed)
    serve.check(settings.server, open_catalog(settings))
    arguments, secret = _without_keys(arguments, settings.server.api_keys)
    own = manager()
    path = own.path(Path.home())
    command = [sys.executable, "-m", "pippin", "serve", *_absolute(arguments)]
    variables = environment.model_folder_variables() | secret
    _check_text([*command, *variables.values()])
    text = own.text(command, Path.home(), variables)
    if parsed.dry_run:
        print(f"# {path}\n{text}", end="")
        return 0
    if path.is_file():
        _stop(own, path)  # it would keep its old configuration
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=True)  # it may contain a key
    path.chmod(0o600)
    path.write_text(text)
    for command in own.start(path):
        _do(command)
    print(f"The service is installed and started: {path}")
    return 0


def _status(words: Sequence[str]) -> int:
    _status_parser().parse(words)
    own = manager()
    path = own.path(Path.home())
    if not path.is_file():
        print("The service is not installed. Install it: pippin service install MODEL")
        return 1
    print(f"The service is installed: {path}")
    return _ask(own.status())


def _uninstall(words: Sequence[str]) -> int:
    parsed = _uninstall_parser().parse(words)
    own = manager()
    path = own.path(Path.home())
    if parsed.dry_run:
        print("\n".join([*(" ".join(command) for command in own.stop(path)), f"rm {path}"]))
        return 0
    if not path.is_file():
        print("The service is not installed.")
        return 0
    _stop(own, path)
    path.unlink()
    print("The service is removed.")
    return 0


def _stop(own: Manager, path: Path) -> None:
    for command in own.stop(path):
        _ask(command)  # it may have stopped by itself


def _without_keys(arguments: Sequence[str], keys: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments without API keys, and the keys as a variable: all users of a machine can read command lines."""
    kept: list[str] = []
    found: list[str] = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        if word in keys and kept and kept[-1].startswith("--"):
            kept.pop()
            found.append(word)
        elif equals and flag.startswith("--") and value in keys:
            found.append(value)
        else:
            kept.append(word)
    if any("," in key for key in found):
        raise ConfigError("An API key with a comma can't be a variable of the service; give --api-key-file.")
    return kept, {"PIPPIN_API_KEYS": ",".join(found)} if found else {}


def _check_text(words: Sequence[str]) -> None:
    """Raises `ConfigError` for characters that a service file can't contain. To systemd, a carriage return ends a line
    like a line feed, so the text after it would be a separate setting."""
    for word in words:
        if any(ord(sign) < 32 or ord(sign) == 127 or 0xD800 <= ord(sign) < 0xE000 for sign in word):
            raise ConfigError(
                f"{word!r} has characters that a service's file can't hold: give it a name without control characters, "
                "in UTF-8."
            )


def _absolute(arguments: Sequence[str]) -> list[str]:
    """The arguments with absolute paths, because a service starts in another folder."""
    found = []
    for word in arguments:
        name, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
        found.append(name + equals + (str(Path(value).resolve()) if Path(value).exists() else value))
    return found


def _do(command: Sequence[str]) -> None:
    if shutil.which(command[0]) is None:
        raise ServerError("not_found", f"{command[0]} is not on this machine: the service cannot be started.")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServerError(
            "internal", f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}"
        )


def _ask(command: Sequence[str]) -> int:
    if shutil.which(command[0]) is None:
        raise ServerError("not_found", f"{command[0]} is not on this machine.")
    return subprocess.run(command, check=False).returncode
