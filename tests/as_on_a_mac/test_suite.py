"""Some of the engine's own tests pass as on a Mac; `make as-on-a-mac` runs all of them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGE = Path("tests/engines/language")


def test_the_engines_tests_pass_as_on_a_mac() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "tests.as_on_a_mac.plugin", "-p", "no:cacheprovider"]
    chosen = [str(LANGUAGE / "step/test_engine.py"), "-k", "choices or draws_on"]
    done = subprocess.run(
        [*command, "--form", "4bit", *chosen], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
