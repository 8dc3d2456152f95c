"""Which device MLX computes on, and how much memory it has; found without importing MLX."""

import contextlib
import logging
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from pippin.config import installed
from pippin.config.options.server import ServerOptions

log = logging.getLogger(__name__)

Accelerator = Literal["metal", "cuda", "cpu"]

CUDA_BUILDS: Final = ("mlx-cuda-13", "mlx-cuda-12", "mlx-cuda")
DRIVER: Final = Path("/proc/driver/nvidia/version")
CARD: Final = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
WIRED_LIMIT: Final = ("/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb")
WORKING_SHARE: Final = 0.9  # of a GPU's working set; the rest is for what a step computes


@cache
def accelerator() -> Accelerator:
    if sys.platform == "darwin":
        return "metal"
    return "cuda" if DRIVER.exists() and not installed.folders().keys().isdisjoint(CUDA_BUILDS) else "cpu"


@cache
def has_cpu_kernels() -> bool:
    """Whether the CPU kernels are installed and compiled; whether this processor supports them is checked by the
    load."""
    found = find_spec("pippin_kernels")
    places = found.submodule_search_locations if found is not None else None
    return any(next(Path(place).glob("libpippin_kernels*"), None) for place in places or ())


def device_memory() -> int:
    """Bytes of the memory that holds weights: the graphics card's with CUDA, else the machine's."""
    found = card_memory() if accelerator() == "cuda" else None
    return machine_memory() if found is None else found


def machine_memory() -> int:
    import psutil  # slow to import, and many commands do not ask

    return int(psutil.virtual_memory().total)


def memory_budget(options: ServerOptions) -> int:
    """Bytes that all models may take: the operator's setting, or a share of `device_memory`, and on Metal no more than
    a GPU's working set leaves to work with. Beyond it, MLX's allocations fail, or macOS ends the process."""
    asked = options.memory_budget_gb
    most = int(device_memory() * options.memory_percent) if asked is None else int(asked * 1e9)
    return min(most, int(working_set() * WORKING_SHARE)) if accelerator() == "metal" else most


def told_budget(options: ServerOptions) -> int:
    """`memory_budget`; the log tells where it is less than the operator's setting."""
    budget, asked = memory_budget(options), options.memory_budget_gb or 0
    if budget < int(asked * 1e9):
        message = (
            "memory_budget_gb is %g: models take %.1f GB, since macOS lets a GPU keep %.1f GB in all. For more, raise "
            "iogpu.wired_limit_mb with sysctl, and start the server again."
        )
        log.warning(message, asked, budget / 1e9, working_set() / 1e9)
    return budget


@cache
def working_set() -> int:
    """Bytes that macOS lets a GPU keep resident: `iogpu.wired_limit_mb` where the operator has set it, else two thirds
    of the memory of Macs up to 36 GB, and three quarters of larger ones."""
    limit = _told(WIRED_LIMIT)
    if limit:
        return limit << 20
    memory = machine_memory()
    return memory * 2 // 3 if memory <= 36 << 30 else memory * 3 // 4


@cache
def card_memory() -> int | None:
    """Bytes of the NVIDIA card that MLX takes, the first that programs may see, according to its driver; None if that
    does not tell."""
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    found = _told((*CARD, f"--id={card}"))
    return None if found is None else found << 20


def _told(command: tuple[str, ...]) -> int | None:
    """The number that a program prints; None if it prints none or fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        return int(subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout)
    return None
