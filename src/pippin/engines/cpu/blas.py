"""Loads the BLAS that MLX computes with on Linux: MKL or OpenBLAS, ahead of the reference BLAS in MLX's wheel."""

import ctypes
import logging
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from pippin.config.errors import install_command
from pippin.config.installed import files
from pippin.config.options.model import ModelOptions

log = logging.getLogger(__name__)

OPENBLAS = {"ngsolve-openblas": "libopenblasp-", "cmeel-openblas": "libopenblas.so.0"}
"""Packages and the prefixes of their libraries' names, the preferred one first. The first is for any x86 processor. The
second is compiled for one processor, with AVX-512 on x86 and SVE2 on arm64, for which the first has no wheel."""
AVX512 = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
AVX2 = frozenset({"avx2", "fma"})
NEEDED = {
    "SAPPHIRERAPIDS": AVX512 | {"avx512_bf16"},
    "COOPERLAKE": AVX512 | {"avx512_bf16"},
    "SKYLAKEX": AVX512,
    "HASWELL": AVX2,
    "ZEN": AVX2,
    "NEOVERSEN2": frozenset({"sve2", "bf16", "i8mm"}),
}
"""What a processor must have, in the words of /proc/cpuinfo, to run an OpenBLAS compiled for one core (its TARGET). One
compiled for several (DYNAMIC_ARCH) names the core that it found itself on."""


def accelerate_blas(options: ModelOptions, threads: int | None) -> str | None:
    """Load MKL, if it is installed, or OpenBLAS, and return its name.

    This has to run before the first import of mlx in the process, because symbols resolve to the library that was
    loaded first. If no library can be loaded, this logs a warning and returns None, and products are slow.
    """
    if platform.system() != "Linux" or not options.accelerated_blas or "mlx.core" in sys.modules:
        return None
    packaged = [path for package, name in OPENBLAS.items() if (path := _packaged(package, name)) is not None]
    if not packaged and not _packaged("mlx-cpu", "libmlx.so"):
        # MLX's build for CUDA multiplies matrices on the device.
        return None
    mkl = _packaged("mkl", "libmkl_rt.so.")
    try:
        if mkl is not None:
            openmp = _packaged("intel-openmp", "libiomp5.so")
            if openmp is not None:  # which runs MKL's threads and comes as a package of its own
                ctypes.CDLL(str(openmp), ctypes.RTLD_GLOBAL)
            library = ctypes.CDLL(str(mkl), ctypes.RTLD_GLOBAL)
            if threads is not None:
                library.MKL_Set_Num_Threads(ctypes.c_int(threads))
            return "MKL"
        _provide_gfortran()
        blas = load_openblas([str(path) for path in packaged] or ["libopenblas.so.0"], processor_flags())
    except OSError as error:
        log.warning(
            "no accelerated BLAS (%s): products outside Pippin's kernels run 3 to 50 times slower; "
            "%s (or `mkl` instead of `cpu`, which any x86 processor runs)",
            error,
            install_command("cpu"),
        )
        return None
    if threads is not None:
        blas.openblas_set_num_threads(ctypes.c_int(threads))
    return "OpenBLAS"


def load_openblas(paths: Sequence[str], flags: frozenset[str]) -> ctypes.CDLL:
    """Load the first library that this processor runs. Raises `OSError` if there is none: the first product of an
    OpenBLAS for another processor would end this process with SIGILL. Until that is known, its symbols stay local."""
    refused = []
    for path in paths:
        # The processor whose instructions the library uses, as OpenBLAS names it.
        ask = ctypes.CDLL(path, ctypes.RTLD_LOCAL).openblas_get_corename
        ask.restype = ctypes.c_char_p
        core: str = ask().decode().upper()
        missing = NEEDED.get(core, frozenset()) - flags
        if not missing or not flags:
            return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        refused.append(
            f"OpenBLAS was compiled for {core}, and this processor lacks {' '.join(sorted(missing))}"
        )
    raise OSError("; ".join(refused))


def processor_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The instruction sets of the processor, as Linux names them; none if it does not say."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), ":")
    return frozenset(flags.partition(":")[2].split())


def _packaged(package: str, name: str) -> Path | None:
    """The first file of an installed package whose name begins with `name`, or None."""
    return next((file for file in files(package) if file.name.startswith(name)), None)


def _provide_gfortran() -> None:
    """Load `libgfortran.so.5`, which OpenBLAS needs: that of the system, or else the one in mlx-cpu's wheel.

    The wheel has it under a hashed name, and the loader finds needed libraries by the SONAME of loaded ones. So a copy
    in memory is loaded whose SONAME is the plain one. That needs no file, and no environment variable that child
    processes would inherit.
    """
    try:
        ctypes.CDLL("libgfortran.so.5", ctypes.RTLD_GLOBAL)
        return
    except OSError:
        pass
    bundled = [file for file in files("mlx-cpu") if file.parent.name.endswith(".libs")]
    for path in bundled:
        if path.name.startswith("libquadmath"):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    fortran = next((path for path in bundled if path.name.startswith("libgfortran")), None)
    if fortran is None:
        raise OSError("libgfortran.so.5 is missing")
    stated = fortran.name.encode() + b"\0"
    descriptor = os.memfd_create("libgfortran.so.5")
    try:
        image = fortran.read_bytes().replace(stated, b"libgfortran.so.5\0".ljust(len(stated), b"\0"))
        # A limit on the size of files (RLIMIT_FSIZE) holds for files in memory too.
        if os.write(descriptor, image) != len(image):
            raise OSError("libgfortran.so.5 could not be put in memory")
        ctypes.CDLL(f"/proc/self/fd/{descriptor}", ctypes.RTLD_GLOBAL)
    finally:
        os.close(descriptor)
