"""Builds the kernels and `run.c` with the sanitizers that are named, `address` and `thread` else, and runs them."""

import subprocess
import sys
import tempfile
from pathlib import Path

from check import HERE, build

SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}


def main(names: list[str]) -> int:
    failed = 0
    for name in names or SANITIZERS:
        with tempfile.TemporaryDirectory() as folder:
            program = build(HERE / "run.c", Path(folder), [*SANITIZERS[name], "-g", "-O1"])
            print(name, flush=True)
            failed |= subprocess.run([str(program)]).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
