"""Which BLAS a worker computes with, by what is installed."""

import ctypes
import json
import subprocess
import sys
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
    threads: list[int] = field(default_factory=list)

    def _set(self, threads: ctypes.c_int) -> None:
        self.threads.append(threads.value)

    openblas_set_num_threads = MKL_Set_Num_Threads = _set


@pytest.mark.parametrize(
    ("installed", "name", "loaded"),
    [
        ({"cmeel-openblas", "mlx-cpu", "mkl", "intel-openmp"}, "MKL", ["libiomp5.so", "libmkl_rt.so.3"]),
        ({"cmeel-openblas", "mlx-cpu"}, "OpenBLAS", ["libopenblas.so.0"]),
        ({"mkl", "mlx-cuda-13"}, None, []),
    ],
)
def test_the_fastest_blas_that_is_installed_stands_in_front(
    installed: set[str], name: str | None, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries: list[Library] = []
    found = {
        "cmeel-openblas": "libopenblas.so.0",
        "mlx-cpu": "libmlx.so",
        "mkl": "libmkl_rt.so.3",
        "intel-openmp": "libiomp5.so",
    }

    def packaged(package: str, start: str) -> Path | None:
        held = package in installed and found[package].startswith(start)
        return Path(found[package]) if held else None

    def load(path: str, mode: int) -> Library:
        assert mode == ctypes.RTLD_GLOBAL  # else MLX does not find it
        libraries.append(Library(path))
        return libraries[-1]

    monkeypatch.setattr(blas.platform, "system", lambda: "Linux")
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setattr(blas, "_packaged", packaged)
    monkeypatch.setattr(blas, "_provide_gfortran", lambda: None)
    monkeypatch.setattr(blas.ctypes, "CDLL", load)
    assert blas.accelerate_blas(ModelOptions(), threads=3) == name
    assert [library.path for library in libraries] == loaded
    assert not libraries or libraries[-1].threads == [3]


def installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(
    sys.platform != "linux" or not (installed("cmeel-openblas") or installed("mkl")), reason="needs a BLAS"
)
def test_the_report_for_the_doctor_multiplies_with_the_blas_of_workers() -> None:
    command = [sys.executable, "-m", "pippin.engines.device"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(told)["blas"] in ("OpenBLAS", "MKL")
