"""Atheris at every reader of strangers' bytes in `make test-all`; its seeds are read in `make test` too.

`PIPPIN_FUZZ_MINUTES` is the time of all long fuzzers together.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.budget import seconds_of_bytes
from tests.fuzz.targets import targets

pytest.importorskip("atheris", reason="atheris is made for Linux")

SECONDS = seconds_of_bytes(len(targets()), otherwise=180)
ROOT = Path(__file__).parents[2]


def fuzz(name: str, seconds: int, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.coverage", name, str(seconds), str(folder)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=seconds + 100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    figures = dict(
        line.removeprefix("stat::").split(":")
        for line in done.stderr.splitlines()
        if line.startswith("stat::")
    )
    inputs, memory = int(figures["number_of_executed_units"]), int(figures["peak_rss_mb"])
    print(
        f"{name}: {inputs} inputs in {seconds} s, slowest {int(figures['slowest_unit_time_sec'])} s, {memory} MB"
    )
    assert inputs > 0


@pytest.mark.long
def test_seconds_of_fuzzing_find_nothing(tmp_path: Path) -> None:
    fuzz("everything", 3, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 200)
@pytest.mark.parametrize("name", targets())
def test_minutes_of_fuzzing_find_nothing(name: str, tmp_path: Path) -> None:
    fuzz(name, SECONDS, tmp_path)


@pytest.mark.parametrize("name", targets())
def test_the_seeds_are_read(name: str) -> None:
    target = targets()[name]
    for seed in [b"", *target.seeds]:
        target.read(seed)
