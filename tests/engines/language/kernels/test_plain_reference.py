"""The C program that holds every kernel against a plain reference finds nothing, on this machine and emulated ones."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pk = pytest.importorskip("pippin_kernels", reason="the kernels are not built: make kernels")

PROGRAMS = Path(__file__).parents[4] / "kernels" / "tests"
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
ARM_COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
# Which of the ways to multiply bytes each of these processors has.
PROCESSORS = {
    "max": "neon-i8mm neon-dotprod baseline",
    "neoverse-n1": "neon-dotprod baseline",
    "cortex-a57": "baseline",
}


@pytest.mark.skipif(pk.why_unavailable() is not None, reason="the kernels do not run here")
@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_each_kernel_gives_what_plain_loops_give(tmp_path: Path) -> None:
    library = Path(pk.__file__).parent / "libpippin_kernels.so"
    program = tmp_path / "check"
    sources = [str(PROGRAMS / "check.c"), str(library), f"-Wl,-rpath,{library.parent}", "-lm", "-pthread"]
    subprocess.run([str(COMPILER), "-std=gnu11", "-O2", "-o", str(program), *sources], check=True)
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert all(name in ran.stdout for name in (*pk.instruction_sets(), *pk.int8_sets()))


@pytest.mark.long
@pytest.mark.skipif(
    ARM_COMPILER is None or EMULATOR is None,
    reason="aarch64-linux-gnu-gcc and qemu-aarch64 are needed (Debian: gcc-aarch64-linux-gnu, qemu-user)",
)
def test_arm_processors_give_what_plain_loops_give() -> None:
    through = [
        part
        for name in PROCESSORS
        for part in ("--through", f"qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu {name}")
    ]
    command = [sys.executable, str(PROGRAMS / "check.py"), *through]
    environment = {**os.environ, "CC": str(ARM_COMPILER)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    assert ran.returncode == 0, ran.stderr
    found = [line for line in ran.stdout.splitlines() if line.startswith("instruction sets")]
    for line, int8 in zip(found, PROCESSORS.values(), strict=True):
        assert line.startswith(f"instruction sets: neon; int8: {int8};")
        assert line.endswith("; 0 failures")
