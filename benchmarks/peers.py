"""How each server under comparison is installed, started and stopped. Each peer has an environment of its own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import llama_cpp_native
from benchmarks.llama_cpp_server import SLOTS

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "bench"


@dataclass(frozen=True)
class Peer:
    """A server: what pip installs (nothing for Pippin itself), and its command line."""

    name: str
    packages: tuple[tuple[str, ...], ...]  # one pip call each
    command: tuple[str, ...]  # {python} {bin} {folder} {model} {port} {threads} are filled in
    model_name: str = "{model}"
    blas: bool = True
    gguf: bool = False  # reads a GGUF file instead of a folder
    build: Callable[[Path, Path], None] | None = None  # into its folder, with its Python
    source: Path = ROOT  # the checkout whose code is run, of Pippin

    @property
    def folder(self) -> Path:
        return CACHE / self.name

    @property
    def python(self) -> Path:
        return Path(sys.executable) if not self.packages else self.folder / "bin" / "python"


SERVE = (
    *("{python}", "-m", "pippin", "serve", "{model}"),
    *("--port", "{port}", "--served-model-name", "bench"),
)
PEERS = {
    peer.name: peer
    for peer in (
        Peer("pippin", (), SERVE, model_name="bench"),
        Peer("pippin_float32", (), (*SERVE, "--cpu-kernels", "off"), model_name="bench"),
        Peer(
            "mlx_lm",
            (("mlx-lm[cpu]==0.32.2", "mlx==0.32.4", "mlx-cpu==0.32.4"),),
            ("{python}", "-m", "mlx_lm", "server", "--model", "{model}", "--port", "{port}"),
        ),
        Peer(
            "mlx_vlm",
            (("mlx-vlm[cpu]==0.7.10", "mlx==0.32.4", "mlx-cpu==0.32.4"),),
            (
                "{python}",
                "-m",
                "mlx_vlm.server",
                "--model",
                "{model}",
                "--port",
                "{port}",
                "--host",
                "127.0.0.1",
            ),
        ),
        Peer(
            "vllm_mlx",
            (
                (
                    "mlx-lm==0.31.3",
                    "mlx==0.32.4",
                    "mlx-cpu==0.32.4",
                    "fastapi",
                    "uvicorn",
                    "psutil",
                    "pyyaml",
                ),
                ("prometheus-client", "mcp", "jsonschema", "lm-format-enforcer", "llguidance", "requests"),
                ("pillow", "tabulate", "pytz", "python-multipart", "httpx", "opencv-python-headless"),
                ("--no-deps", "vllm-mlx==0.6.0", "mlx-vlm==0.6.5"),
            ),
            ("{bin}/vllm-mlx", "serve", "{model}", "--port", "{port}", "--continuous-batching"),
        ),
        Peer(
            "llama_cpp",
            (("xllamacpp",),),
            ("{python}", str(ROOT / "benchmarks" / "llama_cpp_server.py"), "{model}", "{port}", "{threads}"),
            blas=False,
            gguf=True,
        ),
        Peer(
            "llama_cpp_native",
            (("cmake",),),
            (
                "{folder}/server/llama-server",
                *("--model", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
                *("--threads", "{threads}", "--parallel", str(SLOTS), "--ctx-size", str(SLOTS * 2048)),
            ),
            blas=False,
            gguf=True,
            build=llama_cpp_native.build,
        ),
    )
}


def install(peer: Peer) -> None:
    """Make the peer's environment, once."""
    done = peer.folder / ".installed"
    if not peer.packages or done.exists():
        return
    venv.create(peer.folder, with_pip=True, clear=True)
    for packages in (*peer.packages, *((("ngsolve-openblas",),) if peer.blas else ())):
        subprocess.run([peer.python, "-m", "pip", "install", "-q", *packages], check=True)
    if peer.build is not None:
        peer.build(peer.folder, peer.python)
    done.touch()


def blas_environment(peer: Peer) -> dict[str, str]:
    """Variables that put in front of MLX's BLAS what Pippin puts there: MKL if it is installed, else OpenBLAS."""
    found = {"PYTHONPATH": str(ROOT / "benchmarks" / "blas")}
    if mkl := mkl_libraries():
        return found | {"BENCH_BLAS": ":".join(map(str, mkl))}
    # OpenBLAS wants libgfortran under its plain name.
    site = next((peer.python.parent.parent / "lib").glob("python3*/site-packages"))
    bundled = site / "mlx_cpu.libs"
    names = CACHE / "gfortran" / peer.name
    names.mkdir(parents=True, exist_ok=True)
    for path in bundled.glob("libgfortran-*"):
        link = names / "libgfortran.so.5"
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    openblas = next((site / "ngsolve_openblas").glob("libopenblas*.so*"))
    return found | {
        "BENCH_BLAS": str(openblas),
        "LD_LIBRARY_PATH": f"{names}:{bundled}",
    }


def mkl_libraries() -> list[Path]:
    """MKL of Pippin's environment, and the threads that it needs."""
    lib = Path(sys.prefix) / "lib"
    return [*lib.glob("libiomp5.so"), *lib.glob("libmkl_rt.so.*")]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_until_up(port: int, process: subprocess.Popen[bytes], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2) as response,
        ):
            if response.status == 200:
                return
        time.sleep(0.25)
    raise TimeoutError(f"no answer on port {port} after {seconds} s")


@contextlib.contextmanager
def serve(
    peer: Peer, model: Path, port: int, *, same_blas: bool = True, threads: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the peer on loopback while the block lasts; its log goes to the cache folder. `threads` of llama.cpp, as many
    as cores otherwise."""
    install(peer)
    environment = dict(os.environ, HF_HUB_OFFLINE="1", PYTHONUNBUFFERED="1")
    if peer.packages and peer.blas and same_blas:
        environment |= blas_environment(peer)
    elif not peer.packages:
        own = [peer.source / "src"]
        if (peer.source / "kernels" / "pippin_kernels" / "libpippin_kernels.so").exists():
            own.append(peer.source / "kernels")  # before those of the environment
        environment["PYTHONPATH"] = os.pathsep.join(map(str, own))
    words = {
        "python": str(peer.python),
        "bin": str(peer.python.parent),
        "folder": str(peer.folder),
        "model": str(model),
        "port": str(port),
        "threads": str(threads or os.cpu_count()),
    }
    command = [part.format(**words) for part in peer.command]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{peer.name}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_until_up(port, process, 300)
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
