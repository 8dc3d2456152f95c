"""`pippin service`: a launchd agent or systemd user unit that runs `pippin serve` at login."""

import os
import plistlib
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from pippin.cli.arguments import Actions, option_parser, switch, verb
from pippin.cli.local import open_catalog, settings_of
from pippin.cli.verbs import serve
from pippin.config import environment
from pippin.config.errors import ConfigError
from pippin.config.flags import POSITIONAL
from pippin.config.settings import GivenFlag
from pippin.core.errors import ServerError

LABEL: Final = "dev.pippin.server"
UNIT: Final = "pippin.service"
PLAIN: Final = re.compile(r"[A-Za-z0-9_./:=@,+%$-]+")
SECONDS_TO_DRAIN: Final = 60
DRY_RUN: Final = switch("--dry-run", help="say what would be done")


class Manager(Struct, frozen=True):
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
        # Unlike in `Environment=`, `$` is special in a command line.
        + f"ExecStart={' '.join(_word(word).replace('$', '$$') for word in command)}\n"
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


def _word(word: str) -> str:
    """Quotes a word as a whole; `%` is special everywhere in systemd's files."""
    word = word.replace("%", "%%")
    if PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def manager() -> Manager:
    return launchd(Path.home()) if sys.platform == "darwin" else systemd(Path.home())


@verb(
    "service install",
    DRY_RUN,
    description="Run `pippin serve` at login; --dry-run tells how.",
    parser=option_parser,
)
def _install(parsed: Namespace) -> int:
    """Install the service. The arguments are checked now, so that it does not fail at the next login."""
    settings = settings_of(parsed)
    serve.check(settings.server, open_catalog(settings))
    arguments, secret = _without_keys(parsed.given, settings.server.api_keys)
    own = manager()
    path = own.path
    command = [sys.executable, "-m", "pippin", "serve", *arguments]
    variables = environment.lasting_variables() | secret
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
        if _ask(each):
            raise ServerError("internal", f"`{' '.join(each)}` failed.")
    print(f"The service is installed and started: {path}")
    return 0


@verb("service status", description="Whether the service is installed and runs.")
def _status(_: Namespace) -> int:
    own = manager()
    if not own.path.is_file():
        print("The service is not installed. Install it: pippin service install MODEL")
        return 1
    print(f"The service is installed: {own.path}")
    return _ask(own.status)


@verb("service uninstall", DRY_RUN, description="Stop the service and remove it.")
def _uninstall(parsed: Namespace) -> int:
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


service = Actions("service", {"install": _install, "status": _status, "uninstall": _uninstall})


def _without_keys(given: Sequence[GivenFlag], keys: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments without API keys, and the keys as a variable: all users of a machine can read command lines. Paths
    are absolute, because a service starts in another folder."""
    secret = {*keys, ",".join(keys)}
    kept: list[str] = []
    found: list[str] = []
    for flag in given:
        if flag.text is None:
            kept.append(flag.name)
        elif flag.name == POSITIONAL:
            kept.append(_absolute(flag.text))
        elif flag.text in secret:
            found.append(flag.text)
        else:
            kept.append(f"{flag.name}={_absolute(flag.text)}")
    if any("," in key for key in keys if key in found):
        raise ConfigError("An API key with a comma can't be a variable of the service; give --api-key-file.")
    return kept, {"PIPPIN_API_KEYS": ",".join(found)} if found else {}


def _absolute(text: str) -> str:
    """The text with the path that it is, or that stands behind its last `=`, from the root."""
    name, equals, value = ("", "", text) if os.path.exists(text) else text.rpartition("=")
    return name + equals + (os.path.realpath(value) if os.path.exists(value) else value)


def _check_text(words: Sequence[str]) -> None:
    """Raises `ConfigError` for characters that a service file can't contain. To systemd, a carriage return ends a line
    like a line feed, so the text after it would be a separate setting."""
    for word in words:
        if any(ord(sign) < 32 or ord(sign) == 127 or 0xD800 <= ord(sign) < 0xE000 for sign in word):
            raise ConfigError(
                f"{word!r} has characters that a service's file can't hold: give it a name without control characters, "
                "in UTF-8."
            )


def _ask(command: Sequence[str]) -> int:
    if shutil.which(command[0]) is None:
        raise ServerError("not_found", f"{command[0]} is not on this machine: no service can run.")
    return subprocess.run(command, check=False).returncode
