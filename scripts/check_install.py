"""Builds the package and installs it as people do: `python scripts/check_install.py` or `make install-check`.

The wheel must hold every file of the source, pass twine, and answer a prompt from a fresh environment of every Python
that is here (`--python 3.13` names one, and may be repeated), from `curl | sh`, `uv tool install` and pipx. `--model
FOLDER` asks a real model in each environment too. Needs uv, git and a package index; nothing is left behind.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
EXTRA: Final = "" if platform.system() == "Darwin" else "[cpu]"
SCRIPT: Final = {"rules": [{"when": {"user": "hello"}, "say": "It is installed."}]}
QUESTION: Final = ("What is the capital of France?", "Paris")
"""What a real model is asked, and a word of its answer: the smallest demo model knows it."""
SECONDS: Final = 900


class Failure(Exception):
    """What is wrong with the package, in a sentence."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the package, and install it as people do.")
    parser.add_argument(
        "--python", action="append", metavar="VERSION", help="a version that must be here; repeatable"
    )
    parser.add_argument("--skip-tools", action="store_true", help="leave uv tool and pipx out")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a model to ask in each environment")
    parsed = parser.parse_args()
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        print("There is no uv: `pip install uv`.")
        return 1
    with tempfile.TemporaryDirectory(prefix="pippin-install-") as folder:
        try:
            check(Path(folder), uv, parsed.python, tools=not parsed.skip_tools, model=parsed.model)
        except Failure as failure:
            print(f"FAILED: {failure}")
            return 1
    return 0


def check(folder: Path, uv: str, named: list[str] | None, *, tools: bool, model: Path | None) -> None:
    dist = folder / "dist"
    run(uv, "build", "--quiet", "--out-dir", str(dist), str(ROOT))
    [wheel], [source] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    say(f"built {wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB) and {source.name}")
    check_files(wheel)
    run(uv, "tool", "run", "twine", "check", "--strict", str(wheel), str(source))
    say("twine finds nothing to say")
    for version in named or PYTHONS:
        python = find_python(uv, version)
        if python is None and named:
            raise Failure(f"Python {version} is not here.")
        if python is None:
            say(f"Python {version}: not here, left out")
            continue
        check_python(folder, uv, version, python, wheel, model)
    if tools:
        check_installer(folder, uv, dist)
        check_uv_tool(folder, uv, wheel)
        check_pipx(folder, uv, wheel)


def check_files(wheel: Path) -> None:
    """Every file of the source is in the wheel, and nothing else is beside its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(
        ["git", "ls-files", "src/pippin"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    wanted = {name.removeprefix("src/") for name in tracked}
    if packed != wanted:
        raise Failure(
            f"the wheel lacks {sorted(wanted - packed)[:5]} and has {sorted(packed - wanted)[:5]} besides"
        )
    say(f"the wheel holds the {len(wanted)} files of the source")


def find_python(uv: str, version: str) -> str | None:
    done = subprocess.run(
        [uv, "python", "find", "--no-project", version], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def check_python(folder: Path, uv: str, version: str, python: str, wheel: Path, model: Path | None) -> None:
    place = folder / f"python-{version}"
    run(uv, "venv", "--quiet", "--python", python, str(place))
    run(uv, "pip", "install", "--quiet", "--python", str(place / "bin/python"), f"{wheel}{EXTRA}")
    pippin = place / "bin/pippin"
    answers(folder, pippin)
    asked(folder, pippin, "version", wanted=wheel.name.split("-")[1])
    asked(folder, pippin, "doctor", wanted=f"Python {version}")
    if model is not None:
        question, wanted = QUESTION
        # Small models may go on without end where chance has its say.
        bounds = ("--temperature", "0", "--max-tokens", "32")
        asked(folder, pippin, "run", str(model.resolve()), question, *bounds, wanted=wanted)
    imports = "import importlib.util, pippin; assert importlib.util.find_spec('mlx.core')"
    run(str(place / "bin/python"), "-c", imports)
    say(f"Python {version}: a fresh environment answers")
    shutil.rmtree(place)


def check_installer(folder: Path, uv: str, dist: Path) -> None:
    """`curl | sh` of the installer, which finds the wheels of this package and of the kernels where it was fetched."""
    run(uv, "build", "--quiet", "--wheel", "--out-dir", str(dist), str(ROOT / "kernels"))
    shutil.copy(ROOT / "packaging/install.sh", dist)
    served = partial(SimpleHTTPRequestHandler, directory=str(dist))
    with ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        places = {"UV_TOOL_DIR": str(folder / "by-script"), "UV_TOOL_BIN_DIR": str(folder / "by-script-bin")}
        script = f"curl -fsSL {address}/install.sh | sh"
        run(
            "sh",
            "-c",
            script,
            **places,
            UV_FIND_LINKS=f"{address}/",
            PATH=f"{Path(uv).parent}:{os.environ['PATH']}",
        )
        server.shutdown()
    answers(folder, folder / "by-script-bin/pippin")
    say("`curl | sh` answers")


def check_uv_tool(folder: Path, uv: str, wheel: Path) -> None:
    places = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    run(uv, "tool", "install", "--quiet", f"{wheel}{EXTRA}", **places)
    answers(folder, folder / "bin/pippin")
    say("`uv tool install` answers")


def check_pipx(folder: Path, uv: str, wheel: Path) -> None:
    places = {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "pipx-bin")}
    run(uv, "tool", "run", "pipx", "install", "--quiet", f"{wheel}{EXTRA}", **places)
    answers(folder, folder / "pipx-bin/pippin")
    say("pipx answers")


def answers(folder: Path, pippin: Path) -> None:
    """The installed command serves a scripted model and answers with it."""
    script = folder / "demo.script.json"
    script.write_text(json.dumps(SCRIPT))
    asked(folder, pippin, "run", str(script), "Say hello.", wanted="It is installed.")


def asked(folder: Path, pippin: Path, *words: str, wanted: str) -> None:
    """A command of it prints what is wanted, in an empty home and far from the source."""
    with home(folder) as place:
        done = subprocess.run(
            [str(pippin), *words],
            cwd=place,
            env={"PATH": os.environ["PATH"], "HOME": str(place)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if done.returncode or wanted not in done.stdout:
        raise Failure(
            f"{pippin} {' '.join(words)}: status {done.returncode}, {done.stdout[-600:]} {done.stderr[-600:]}"
        )


@contextlib.contextmanager
def home(folder: Path) -> Iterator[Path]:
    place = folder / "home"
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run(*command: str, **variables: str) -> None:
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise Failure(
            f"`{' '.join(command)}` ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"
        )


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
