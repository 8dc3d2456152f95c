"""The files that describe the service to launchd and systemd."""

import os
import plistlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

LABEL: Final = "dev.pippin.server"
UNIT: Final = "pippin.service"
PLAIN: Final = re.compile(r"[A-Za-z0-9_./:=@,+%$-]+")
SECONDS_TO_DRAIN: Final = 60


class Manager(Protocol):
    """A system's service manager."""

    def path(self, home: Path) -> Path: ...

    def text(self, command: Sequence[str], home: Path, variables: Mapping[str, str]) -> str: ...

    def start(self, path: Path) -> list[list[str]]: ...

    def stop(self, path: Path) -> list[list[str]]: ...

    def status(self) -> list[str]: ...


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


LAUNCHD: Final = Launchd()
SYSTEMD: Final = Systemd()


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
