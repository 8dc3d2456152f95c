"""`pippin service`: a launchd agent or systemd user unit that runs `pippin serve` at login."""

import os
import plistlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pippin.cli.arguments import Parser, actions, dispatch, option_parser
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
class Manager:
    """What runs services at login: where it looks for their files, what is in one, and its commands."""

    path: Path
    text: Callable[[Sequence[str], Mapping[str, str]], str]
    start: Sequence[Sequence[str]]
    stop: Sequence[str]
    status: Sequence[str]


def launchd(home: Path) -> Manager:
    path, domain = home / "Library" / "LaunchAgents" / f"{LABEL}.plist", f"gui/{os.getuid()}"
    log = str(home / "Library" / "Logs" / "pippin.log")

    def text(command: Sequence[str], variables: Mapping[str, str]) -> str:
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

    service = f"{domain}/{LABEL}"
    start = [("launchctl", "bootstrap", domain, str(path))]
    return Manager(path, text, start, ("launchctl", "bootout", service), ("launchctl", "print", service))


def systemd(home: Path) -> Manager:
    own = ("systemctl", "--user")
    start = [(*own, "daemon-reload"), (*own, "enable", "--now", UNIT)]
    stop, status = (*own, "disable", "--now", UNIT), (*own, "--no-pager", "status", UNIT)
    return Manager(home / ".config" / "systemd" / "user" / UNIT, _unit, start, stop, status)


def _unit(command: Sequence[str], variables: Mapping[str, str]) -> str:
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


def new_parser() -> Parser:
    parsers = (_install_parser(), _status_parser(), _uninstall_parser())
    return actions("pippin service", "Run `pippin serve` at login.", parsers)


def _install_parser() -> Parser:
    parser = option_parser("pippin service install", "Run `pippin serve` at login; --dry-run tells how.")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    return parser


def _status_parser() -> Parser:
    return Parser(prog="pippin service status", description="Whether the service is installed and runs.")


def _uninstall_parser() -> Parser:
    parser = Parser(prog="pippin service uninstall", description="Stop the service and remove it.")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    return parser


def run(arguments: Sequence[str]) -> int:
    does = {"install": _install, "status": _status, "uninstall": _uninstall}
    return dispatch(new_parser(), arguments, does)


def manager() -> Manager:
    return launchd(Path.home()) if sys.platform == "darwin" else systemd(Path.home())


def _install(words: Sequence[str]) -> int:
    """Install the service. The arguments are checked now, so that it does not fail at the next login."""
    parsed = _install_parser().parse(words)
    arguments = [word for word in words if word != "--dry-run"]
    settings = settings_of(parsed)
    serve.check(settings.server, open_catalog(settings))
    arguments, secret = _without_keys(arguments, settings.server.api_keys)
    own = manager()
    path = own.path
    command = [sys.executable, "-m", "pippin", "serve", *_absolute(arguments)]
    variables = environment.model_folder_variables() | secret
    _check_text([*command, *variables.values()])
    text = own.text(command, variables)
    if parsed.dry_run:
        print(f"# {path}\n{text}", end="")
        return 0
    if path.is_file():
        _ask(own.stop)  # it would keep its old configuration, or has stopped by itself
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600, exist_ok=True)  # it may contain a key
    path.chmod(0o600)
    path.write_text(text)
    for each in own.start:
        _do(each)
    print(f"The service is installed and started: {path}")
    return 0


def _status(words: Sequence[str]) -> int:
    _status_parser().parse(words)
    own = manager()
    if not own.path.is_file():
        print("The service is not installed. Install it: pippin service install MODEL")
        return 1
    print(f"The service is installed: {own.path}")
    return _ask(own.status)


def _uninstall(words: Sequence[str]) -> int:
    parsed = _uninstall_parser().parse(words)
    own = manager()
    if parsed.dry_run:
        print(" ".join(own.stop), f"rm {own.path}", sep="\n")
        return 0
    if not own.path.is_file():
        print("The service is not installed.")
        return 0
    _ask(own.stop)  # it may have stopped by itself
    own.path.unlink()
    print("The service is removed.")
    return 0


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
    if _ask(command):
        raise ServerError("internal", f"`{' '.join(command)}` failed.")


def _ask(command: Sequence[str]) -> int:
    if shutil.which(command[0]) is None:
        raise ServerError("not_found", f"{command[0]} is not on this machine: no service can run.")
    return subprocess.run(command, check=False).returncode
