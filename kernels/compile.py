"""Compiles the kernels: `python compile.py LIBRARY [--here] [FLAGS...]`, with the compiler that CC names, or else with
cc, gcc, clang, or that of the package ziglang. CC="python -m ziglang cc -target aarch64-linux-gnu.2.28" compiles for
arm64. With `--here` the library has the instruction sets of this machine's processor alone, which takes a fifth of the
time.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
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
    "int8_avx2_vnni": [*X86["avx2"], "-mavxvnni"],
    "int8_avx2": X86["avx2"],
}
ARM = {"int8_neon_dotprod": ["-march=armv8.2-a+dotprod"], "int8_neon_i8mm": ["-march=armv8.2-a+dotprod+i8mm"]}
BETWEEN_LINES = 3.0  # seconds
SPECIAL = {"__x86_64__": X86, "__aarch64__": ARM}
NEEDED = {
    "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl"},
    "int8_avx512_vnni": {"avx512f", "avx512_vnni"},
    "int8_avx2_vnni": {"avx2", "avx_vnni"},
    "int8_neon_dotprod": {"asimddp"},
    "int8_neon_i8mm": {"asimddp", "i8mm"},
}
"""What Linux calls the instructions of a file in /proc/cpuinfo. AVX2 is compiled in any case."""


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


def lacking_here() -> set[str]:
    """The files of instruction sets that this machine's processor lacks; none where the system does not tell."""
    told = Path("/proc/cpuinfo")
    has = set(told.read_text().split()) if told.is_file() else set[str].union(*NEEDED.values())
    return {name for name, needed in NEEDED.items() if not needed <= has}


def spare_here() -> set[str]:
    """The files for processors without AVX2, where this one has it: they are linked, and never run."""
    told = Path("/proc/cpuinfo")
    return {"baseline", "int8_baseline"} if told.is_file() and "avx2" in told.read_text().split() else set()


def told(objects: Iterable[str], count: int) -> Iterator[str]:
    """The same objects; every few seconds a line says how far they are."""
    sys.stderr.write("Compiling the kernels for CPUs (once) ...\n")
    last = time.monotonic()
    for done, made in enumerate(objects, 1):
        if time.monotonic() > last + BETWEEN_LINES:
            last = time.monotonic()
            sys.stderr.write(f"Compiling the kernels for CPUs: {done} of {count} files\n")
        yield made


def compile_library(
    library: Path, flags: list[str], left_out: Collection[str] = (), spare: Collection[str] = ()
) -> None:
    """Each file for its instruction set, on all cores, with `flags` beside the usual ones. Of the sets `left_out` the
    library says that it lacks them; the files `spare` are compiled quickly, to code that is slow."""
    compiler = find_compiler()
    special_of = {name: flags for name, flags in special_flags(compiler).items() if name not in left_out}
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compiled(source: Path) -> str:
            target = str(Path(folder) / f"{source.stem}.o")
            special = special_of.get(source.stem, [])
            if special and not knows(compiler, special):
                special = []  # the file then says that the library lacks it
            quick = ["-O0"] if source.stem in spare else []
            subprocess.run(
                [*compiler, *COMMON, *special, *flags, *quick, "-c", str(source), "-o", target], check=True
            )
            return target

        # The largest files first, so that no core is left with one of them alone.
        sources = sorted(SOURCES.glob("*.c"), key=lambda path: path.stem not in (*X86, *ARM, "baseline"))
        objects = list(told(pool.map(compiled, sources), len(sources)))
        made = f"{library}.new"
        subprocess.run([*compiler, "-shared", "-pthread", *flags, "-o", made, *objects, "-lm"], check=True)
        Path(made).replace(library)


if __name__ == "__main__":
    library, *given = sys.argv[1:]
    here = "--here" in given
    try:
        left_out, spare = (lacking_here(), spare_here()) if here else ((), ())
        compile_library(Path(library), [flag for flag in given if flag != "--here"], left_out, spare)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"the kernels could not be compiled: {error}") from None
