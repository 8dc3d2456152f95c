"""Builds the kernels and `check.c`, which holds them against a plain reference, and runs it.

    python kernels/tests/check.py
    CC=aarch64-linux-gnu-gcc python kernels/tests/check.py --through "qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu max"

A program named by `--through`, once or more often, runs what the machine itself cannot.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def build(source: Path, folder: Path, flags: list[str]) -> Path:
    """`source` with the library, which is compiled into `folder` too, all with `flags`; gives the program."""
    sys.path.insert(0, str(HERE.parent))
    from compile import compile_library, find_compiler

    library, program = folder / "libpippin_kernels.so", folder / source.stem
    compile_library(library, flags)
    linked = [str(library), f"-Wl,-rpath,{folder}", "-lm", "-pthread"]
    subprocess.run(
        [*find_compiler(), "-std=gnu11", *flags, "-o", str(program), str(source), *linked], check=True
    )
    return program


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--through", action="append", help="a program that runs it, with its arguments")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        program = build(HERE / "check.c", Path(folder), ["-O2"])
        for through in options.through or [""]:
            command = [*shlex.split(through), str(program)]
            print(" ".join(command[:-1]) or "this machine", flush=True)
            failed |= subprocess.run(command).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
