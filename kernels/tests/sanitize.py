"""Builds the kernels and `run.c` with the sanitizers that are named, `address` and `thread` else, and runs them."""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}


def main(names: list[str]) -> int:
    sys.path.insert(0, str(HERE.parent))
    from compile import compile_library, find_compiler

    failed = 0
    for name in names or SANITIZERS:
        flags = [*SANITIZERS[name], "-g", "-O1"]
        with tempfile.TemporaryDirectory() as folder:
            library, program = Path(folder) / "libpippin_kernels.so", Path(folder) / "run"
            compile_library(library, flags)
            made = [
                str(program),
                str(HERE / "run.c"),
                str(library),
                f"-Wl,-rpath,{folder}",
                "-lm",
                "-pthread",
            ]
            subprocess.run([*find_compiler(), "-std=gnu11", *flags, "-o", *made], check=True)
            print(name, flush=True)
            failed |= subprocess.run([str(program)]).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
