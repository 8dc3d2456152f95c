"""Other people's programs, fetched once into the project's cache, and run far from the user's own files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "agents"
NPM_PACKAGES: Final = {
    "codex": "@openai/codex@0.171.0",
    "claude": "@anthropic-ai/claude-code@2.1.332",
    "opencode": "opencode-ai@1.18.33",
    "copilot": "@github/copilot@1.0.102",
    "gemini": "@google/gemini-cli@0.61.0",
    "qwen": "@qwen-code/qwen-code@0.24.4",
    "cn": "@continuedev/cli@1.5.47",
    "cline": "cline@3.0.65",
    "pi": "@earendil-works/pi-coding-agent@1.6.0",
    "kilo": "@kilocode/cli@7.7.7",  # 7.8.1 lacks its program for Linux
    "kimi": "@moonshot-ai/kimi-code@2.1.0",
    "goose": "@aaif/goose-binary-linux-x64@0.20.1",
    "openclaw": "openclaw@2026.9.6",
    "droid": "droid@0.215.0",
}
NODE: Final = "node@24.16.0"  # the newest agents run on no older one
PYTHON_PACKAGES: Final = {
    "aider": "aider-chat==0.86.2",
    "hermes": "hermes-agent==0.19.0",
    "openhands": "openhands==1.16.0",
}
PYTHONS: Final = {"openhands": "3.12"}  # where the one that runs the tests will not do
FETCH_SECONDS: Final = 900
RUN_SECONDS: Final = 2000  # a real model computes an agent's first prompt for minutes


def npm_command(name: str) -> Path:
    """The command of one of the agents that npm brings; each lies in a folder of its own."""
    return node_folder(name, NPM_PACKAGES[name]) / "node_modules" / ".bin" / name


def node() -> Path:
    """The folder of a Node.js that the newest agents run on."""
    return node_folder("node", NODE) / "node_modules" / ".bin"


def node_folder(name: str, *packages: str) -> Path:
    """A folder of `node_modules` with these packages; the first to ask makes it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not here to fetch the packages")
    path = os.environ["PATH"] if name == "node" else f"{node()}:{os.environ['PATH']}"
    folder = CACHE / f"node-{name}"
    stamp = folder / "packages.txt"
    wanted = "\n".join(packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        fetch = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
        subprocess.run(
            fetch, check=True, timeout=FETCH_SECONDS, capture_output=True, env={**os.environ, "PATH": path}
        )
        stamp.write_text(wanted)
    return folder


def python_command(name: str) -> Path:
    """The command of one of the agents that PyPI brings."""
    return python_environment(name, PYTHON_PACKAGES[name]) / name


def python_environment(name: str, *packages: str) -> Path:
    """The folder of commands of a virtual environment with these packages; the first to ask makes it."""
    folder = CACHE / name
    stamp = folder / "packages.txt"
    wanted = "\n".join(packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        uv = Path(sys.executable).with_name(
            "uv"
        )  # some have hundreds of packages, which pip weighs for minutes
        create = [uv, "venv", "--quiet", "--seed", "--clear", "--python", PYTHONS.get(name, sys.executable)]
        if subprocess.run([*create, folder], check=False, timeout=FETCH_SECONDS).returncode:
            pytest.skip(f"there is no Python for {name}")
        install = [uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", *packages]
        subprocess.run(install, check=True, timeout=FETCH_SECONDS, capture_output=True)
        stamp.write_text(wanted)
    return folder / "bin"


def clean_environment(home: Path, **variables: str) -> dict[str, str]:
    """Nothing of the user's own, but where programs are found."""
    return {"PATH": f"{node()}:{os.environ['PATH']}", "HOME": str(home), "LANG": "C.UTF-8", **variables}


def run(command: list[str | Path], home: Path, *, typed: str = "", **variables: str) -> str:
    """What the command prints, run in `home`/work with nothing of the user's environment; it must end well."""
    work = home / "work"
    work.mkdir(exist_ok=True)
    ended = subprocess.run(
        command,
        cwd=work,
        env=clean_environment(home, **variables),
        input=typed,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
