"""Tells which of the programs that tests pin have newer versions, and pins them.

    python -m tests.agents.newest [--write] [WORD ...]

looks at the programs whose names have one of the words, or at all of them. npm's newest version is the highest that one
of a package's tags names: `latest` may stand still. Run the long tests of `tests/agents` before the new pins are kept.
"""

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.agents.programs import PYTHONS, node

FOLDER: Final = Path(__file__).parent
NPM: Final = re.compile(r'"((?:@[\w.-]+/)?[a-z][\w.-]*)@(\d[\w.-]*)"')
PYPI: Final = re.compile(r'"([A-Za-z][\w.-]*(?:\[[\w,-]+\])?)==(\d[\w.]*)"')
RELEASE: Final = re.compile(r"\d+(\.\d+)*")
SECONDS: Final = 60


def main() -> None:
    parser = ArgumentParser(description="Find newer versions of the programs that tests pin.")
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--write", action="store_true", help="pin them")
    parsed = parser.parse_args()
    for path in sorted(FOLDER.glob("*.py")):
        text = path.read_text()
        for name, version, joint in pins(text):
            if parsed.words and not any(word in name for word in parsed.words):
                continue
            newest = newest_of_npm(name) if joint == "@" else newest_of_pypi(name)
            if newest != version:
                print(f"{path.name}: {name} {version} -> {newest}")
                text = text.replace(f'"{name}{joint}{version}"', f'"{name}{joint}{newest}"')
        if parsed.write:
            path.write_text(text)


def pins(text: str) -> Iterator[tuple[str, str, str]]:
    """The name and the version of each pinned program, and what stands between them."""
    for joint, pattern in (("@", NPM), ("==", PYPI)):
        for name, version in dict.fromkeys(pattern.findall(text)):
            yield name, version, joint


def newest_of_npm(name: str) -> str:
    command = ["npm", "view", name, "dist-tags", "--json"]
    path = f"{node()}:{os.environ['PATH']}"
    tags: dict[str, str] = json.loads(output(command, PATH=path))
    return max(filter(RELEASE.fullmatch, tags.values()), key=numbers)


def newest_of_pypi(name: str) -> str:
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate", "-"]
    if name in PYTHONS:
        command += ["--python-version", PYTHONS[name]]
    return output(command, name).strip().rpartition("==")[2]


def output(command: list[str], given: str = "", **variables: str) -> str:
    env = {**os.environ, **variables}
    return subprocess.run(
        command, input=given, env=env, check=True, capture_output=True, text=True, timeout=SECONDS
    ).stdout


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


if __name__ == "__main__":
    main()
