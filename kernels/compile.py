"""Compiles the kernels: `python compile.py LIBRARY [FLAGS...]`, with the compiler that CC names, or else with cc, gcc,
clang, or that of the package ziglang. CC="python -m ziglang cc -target aarch64-linux-gnu.2.28" compiles for arm64.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parent / "c"
# Products are sums in any order, and so may use fused multiply-add; nothing else of -ffast-math is wanted. At link time
# it would make the whole process treat subnormal numbers as zero.
COMMON = [
    "-std=gnu11",
    "-O2",
    "-ffp-contract=fast",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wextra",
]
X86 = {
    "avx512": ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma", "-mf16c"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
}
X86 |= {
    "int8_avx512_vnni": [*X86["avx512"], "-mavx512vnni"],
    "int8_amx": [*X86["avx512"], "-mavx512vnni", "-mamx-tile", "-mamx-int8"],
    "int8_avx2_vnni": [*X86["avx2"], "-mavxvnni"],
    "int8_avx2": X86["avx2"],
}
ARM = {"int8_neon_dotprod": ["-march=armv8.2-a+dotprod"], "int8_neon_i8mm": ["-march=armv8.2-a+dotprod+i8mm"]}
SPECIAL = {"__x86_64__": X86, "__aarch64__": ARM}


def system_compiler() -> list[str] | None:
    """The one that CC names, or that the machine has."""
    named = os.environ.get("CC")
    if named:
        return shlex.split(named)
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return None if found is None else [found]


def find_compiler() -> list[str]:
    """Raises `SystemExit` where there is none: neither the machine's nor the package ziglang."""
    found = system_compiler()
    if found is None and find_spec("ziglang") is not None:
        found = [sys.executable, "-m", "ziglang", "cc"]
    if found is None:
        raise SystemExit(
            "no C compiler (cc, gcc, clang or the package ziglang) was found: the kernels cannot be built"
        )
    return found


def special_flags(compiler: list[str]) -> dict[str, list[str]]:
    """What each file of an instruction set is compiled with, for the processor that this compiler compiles for."""
    asked = [*compiler, "-dM", "-E", "-x", "c", os.devnull]
    defined = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return next((flags for name, flags in SPECIAL.items() if f"#define {name} " in defined), {})


def knows(compiler: list[str], flags: list[str]) -> bool:
    """Whether it takes these flags: an older one lacks the newest instruction sets."""
    # Not -fsyntax-only, which fails in Zig whatever the flags are.
    tried = [*compiler, *flags, "-E", "-x", "c", os.devnull]
    return subprocess.run(tried, capture_output=True).returncode == 0


def compile_library(library: Path, flags: list[str]) -> None:
    """Each file for its instruction set, on all cores, with `flags` beside the usual ones."""
    compiler = find_compiler()
    special_of = special_flags(compiler)
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compiled(source: Path) -> str:
            target = str(Path(folder) / f"{source.stem}.o")
            special = special_of.get(source.stem, [])
            if special and not knows(compiler, special):
                special = []  # the file then says that the library lacks it
            subprocess.run(
                [*compiler, *COMMON, *special, *flags, "-c", str(source), "-o", target], check=True
            )
            return target

        # The largest files first, so that no core is left with one of them alone.
        sources = sorted(SOURCES.glob("*.c"), key=lambda path: path.stem not in (*X86, *ARM, "baseline"))
        objects = list(pool.map(compiled, sources))
        made = f"{library}.new"
        subprocess.run([*compiler, "-shared", "-pthread", *flags, "-o", made, *objects, "-lm"], check=True)
        Path(made).replace(library)


if __name__ == "__main__":
    try:
        compile_library(Path(sys.argv[1]), sys.argv[2:])
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"the kernels could not be compiled: {error}") from None
