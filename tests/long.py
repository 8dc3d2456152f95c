"""Run the long tests in groups, one after the other: `python -m tests.long [group ...] [what pytest is told]`.

Each group ends in a line: how many passed and failed, how long it took, and where its output lies. What failed is named
below the line. The run fails where a group does. Groups are folders and files of tests; `rest` is what no other group
holds, so that no long test is left out.
"""

import os
import re
import subprocess
import sys
import time
from itertools import takewhile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
OUTPUT: Final = ROOT / ".cache" / "long"
LANGUAGE: Final = "tests/engines/language"
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "cluster": ("tests/runtime/cluster", "tests/runtime/ranks"),
    "chaos": ("tests/chaos",),
    "fuzz": ("tests/fuzz", "tests/security"),
    "examples": ("tests/test_examples.py",),
    "drop_in": ("tests/drop_in",),
    "clients": ("tests/api",),
    "page": ("tests/page",),
    "output": ("tests/output",),
    "vision": (f"{LANGUAGE}/vision",),
    "step": (f"{LANGUAGE}/step", f"{LANGUAGE}/drafters"),
    "kernels": (f"{LANGUAGE}/kernels",),
    "caches": (f"{LANGUAGE}/kv_cache", f"{LANGUAGE}/prefix_cache"),
    "prompts": (f"{LANGUAGE}/prompt", f"{LANGUAGE}/constraints"),
    "families": (f"{LANGUAGE}/architectures",),
    "agents": ("tests/agents", "tests/mcp"),
    "rest": ("tests",),
}
SCHEDULES: Final = "20"
"""Random schedules of each architecture, where `PIPPIN_SCHEDULES` says nothing else; the tests have a thousand."""
MINUTES: Final = "10"
"""Of all fuzzers together, where `PIPPIN_FUZZ_MINUTES` says nothing else."""
SECONDS: Final = 1800  # of a test


def words_of(group: str) -> list[str]:
    """What pytest is told to collect for a group."""
    others = [path for name, paths in GROUPS.items() if name != group for path in paths]
    ignored = [f"--ignore={path}" for path in others] if group == "rest" else []
    return [*GROUPS[group], *ignored]


def run(group: str, more: list[str]) -> bool:
    """Run a group; whether nothing in it failed."""
    output = OUTPUT / f"{group}.log"
    command = [sys.executable, "-m", "pytest", "-m", "long", f"--timeout={SECONDS}", "--tb=short", "-rfE"]
    began = time.monotonic()
    with output.open("w") as file:
        ended = subprocess.run(
            [*command, *words_of(group), *more],
            cwd=ROOT,
            env={"PIPPIN_SCHEDULES": SCHEDULES, "PIPPIN_FUZZ_MINUTES": MINUTES, **os.environ},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    lines = output.read_text(errors="replace").splitlines()
    told = next((line for line in reversed(lines) if re.search(r"\d+ \w+.* in [\d.]+s", line)), "no result")
    print(f"{group:9} {minutes:3}:{seconds:02}  {told.strip('= ')}  {output.relative_to(ROOT)}", flush=True)
    for line in lines:
        if line.startswith(("FAILED ", "ERROR ")):
            print(f"  {line}", flush=True)
    return ended.returncode == 0


def main() -> int:
    words = sys.argv[1:]
    groups = list(takewhile(lambda word: not word.startswith("-"), words))
    if unknown := [each for each in groups if each not in GROUPS]:
        sys.exit(f"There is no group {unknown[0]!r}; there are {', '.join(GROUPS)}.")
    OUTPUT.mkdir(parents=True, exist_ok=True)
    passed = [run(group, words[len(groups) :]) for group in groups or GROUPS]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
