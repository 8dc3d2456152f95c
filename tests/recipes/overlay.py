"""A copy of the package in which a recipe is carried out, and the files that the recipe names."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PATH: Final = re.compile(r"`(src/pippin/[\w/.]+)`")


def files_of_recipe(title: str) -> set[str]:
    """The files and folders of the package that the recipe of this title names in CONTRIBUTING.md."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = page.split(f"\n## Recipe: {title}\n", 1)[1].split("\n## ", 1)[0]
    return set(PATH.findall(section))


class Overlay:
    """The package's source in a folder of its own. What is added or changed there, no other test sees."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.touched: set[str] = set()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src" / "pippin", folder / "src" / "pippin", ignore=ignored)

    def insert(self, path: str, before: str, text: str) -> None:
        """Put `text` before the line that begins with `before`, which must be there exactly once."""
        lines = self._read(path).splitlines(keepends=True)
        [place] = [number for number, line in enumerate(lines) if line.startswith(before)]
        self.write(path, "".join([*lines[:place], text, *lines[place:]]))

    def write(self, path: str, text: str) -> None:
        self.touched.add(path)
        (self._folder / path).write_text(text, "utf-8")

    def run(self, script: str) -> Any:
        """What a script prints as JSON, run by a Python of its own that imports this package."""
        environment = {**os.environ, "PYTHONPATH": str(self._folder / "src")}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _read(self, path: str) -> str:
        return (self._folder / path).read_text("utf-8")
