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
    "pi": "@mariozechner/pi-coding-agent@0.73.1",
}
FETCH_SECONDS: Final = 900
RUN_SECONDS: Final = 2000  # a real model computes an agent's first prompt for minutes


def npm_command(name: str) -> Path:
    """The command of one of the agents that npm brings; each lies in a folder of its own."""
    return node_folder(name, NPM_PACKAGES[name]) / "node_modules" / ".bin" / name


def node_folder(name: str, *packages: str) -> Path:
    """A folder of `node_modules` with these packages; the first to ask makes it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not here to fetch the packages")
    folder = CACHE / f"node-{name}"
    stamp = folder / "packages.txt"
    wanted = "\n".join(packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        fetch = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
        subprocess.run(fetch, check=True, timeout=FETCH_SECONDS, capture_output=True)
        stamp.write_text(wanted)
    return folder


def python_environment(name: str, *packages: str) -> Path:
    """The folder of commands of a virtual environment with these packages; the first to ask makes it."""
    folder = CACHE / name
    stamp = folder / "packages.txt"
    wanted = "\n".join(packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=FETCH_SECONDS
        )
        uv = Path(sys.executable).with_name(
            "uv"
        )  # some have hundreds of packages, which pip weighs for minutes
        install = [uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", *packages]
        subprocess.run(install, check=True, timeout=FETCH_SECONDS, capture_output=True)
        stamp.write_text(wanted)
    return folder / "bin"


def clean_environment(home: Path, **variables: str) -> dict[str, str]:
    """Nothing of the user's own, but where programs are found."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **variables}


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
