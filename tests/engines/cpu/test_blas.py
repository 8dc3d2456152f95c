"""Which BLAS a worker computes with, by what is installed."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu import blas


@dataclass
class Library:
    """A BLAS that remembers how it was set up."""

    path: str
    core: bytes = b"Haswell"
    threads: list[int] = field(default_factory=list)

    def _set(self, threads: ctypes.c_int) -> None:
        self.threads.append(threads.value)

    openblas_set_num_threads = MKL_Set_Num_Threads = _set

    @property
    def openblas_get_corename(self) -> Callable[[], bytes]:
        def name() -> bytes:
            return self.core

        return name


@pytest.mark.parametrize(
    ("installed", "name", "loaded"),
    [
        ({"cmeel-openblas", "mlx-cpu", "mkl", "intel-openmp"}, "MKL", ["libiomp5.so", "libmkl_rt.so.3"]),
        ({"cmeel-openblas", "mlx-cpu"}, "OpenBLAS", ["libopenblas.so.0"]),
        ({"cmeel-openblas", "ngsolve-openblas", "mlx-cpu"}, "OpenBLAS", ["libopenblasp-r0.so"]),
        ({"ngsolve-openblas", "mlx-cpu"}, "OpenBLAS", ["libopenblasp-r0.so"]),
        ({"mkl", "mlx-cuda-13"}, None, []),
    ],
)
def test_the_fastest_blas_that_is_installed_stands_in_front(
    installed: set[str], name: str | None, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries: list[Library] = []
    found = {
        "cmeel-openblas": "libopenblas.so.0",
        "ngsolve-openblas": "libopenblasp-r0.so",
        "mlx-cpu": "libmlx.so",
        "mkl": "libmkl_rt.so.3",
        "intel-openmp": "libiomp5.so",
    }

    def packaged(package: str, start: str) -> Path | None:
        held = package in installed and found[package].startswith(start)
        return Path(found[package]) if held else None

    def load(path: str, mode: int) -> Library:
        library = Library(path)
        if mode == ctypes.RTLD_GLOBAL:  # else MLX does not find it
            libraries.append(library)
        return library

    monkeypatch.setattr(blas.platform, "system", lambda: "Linux")
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setattr(blas, "_packaged", packaged)
    monkeypatch.setattr(blas, "_provide_gfortran", lambda: None)
    monkeypatch.setattr(blas.ctypes, "CDLL", load)
    assert blas.accelerate_blas(ModelOptions(), threads=3) == name
    assert [library.path for library in libraries] == loaded
    assert not libraries or libraries[-1].threads == [3]


@pytest.mark.parametrize(
    ("core", "flags", "runs"),
    [
        (b"SkylakeX", blas.AVX512 | blas.AVX2, True),
        (b"SKYLAKEX", blas.AVX2, False),
        (b"HASWELL", blas.AVX2, True),
        (b"Haswell", {"sse2"}, False),
        (b"NEOVERSEN1", {"fp", "asimd"}, True),
        (b"NEOVERSEN2", {"fp", "asimd"}, False),
        (b"neoversen2", {"asimd", "sve2", "bf16", "i8mm"}, True),
        (b"SKYLAKEX", {}, True),  # nothing is known of the processor
    ],
)
def test_an_openblas_for_another_processor_is_refused_before_anybody_finds_its_symbols(
    core: bytes, flags: set[str], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []

    def load(path: str, mode: int) -> Library:
        modes.append(mode)
        return Library(path, core)

    monkeypatch.setattr(blas.ctypes, "CDLL", load)
    if runs:
        blas.load_openblas(["libopenblas.so.0"], frozenset(flags))
        assert modes == [ctypes.RTLD_LOCAL, ctypes.RTLD_GLOBAL]
    else:
        with pytest.raises(OSError, match=f"compiled for {core.decode().upper()}, and this processor lacks"):
            blas.load_openblas(["libopenblas.so.0"], frozenset(flags))
        assert modes == [ctypes.RTLD_LOCAL]


def test_an_openblas_for_any_processor_is_loaded_where_the_preferred_one_is_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[str] = []

    def load(path: str, mode: int) -> Library:
        if mode == ctypes.RTLD_GLOBAL:
            found.append(path)
        return Library(path, {"one": b"SKYLAKEX", "any": b"Zen"}[path])

    monkeypatch.setattr(blas.ctypes, "CDLL", load)
    blas.load_openblas(["one", "any"], blas.AVX2)
    blas.load_openblas(["one", "any"], blas.AVX512)
    assert found == ["any", "one"]


def test_the_flags_of_a_processor_are_those_that_linux_names(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert blas.processor_flags(told) == {"fpu", "avx2", "fma"}
    told.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert blas.processor_flags(told) == {"fp", "asimd"}
    assert blas.processor_flags(tmp_path / "missing") == frozenset()


def installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(
    sys.platform != "linux" or not (installed("ngsolve-openblas") or installed("mkl")), reason="needs a BLAS"
)
def test_the_report_for_the_doctor_multiplies_with_the_blas_of_workers() -> None:
    command = [sys.executable, "-m", "pippin.engines.device"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(told)
    assert found["blas"] in ("OpenBLAS", "MKL")
    assert found["gigaflops"] > 0
