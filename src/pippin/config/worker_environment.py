"""The environment that worker processes are started with."""

import os
from pathlib import Path
from typing import Final

import pippin

# A worker runs model code and needs no secret of the server.
SECRETS: Final = ("PIPPIN_API_KEYS", "PIPPIN_API_KEY", "PIPPIN_API_KEY_FILE", "MLX_VLM_SERVER_API_KEY")

# Weights are read whole for every token, so what the processor spends on finding their pages shows: in pages of 2 MiB a
# step of a small model was measured 1.3 to 6 times as fast, the more the more fragmented a virtual machine's memory is.
# glibc asks for such pages on the heap (hugetlb=1), and large arrays are to lie there instead of in mappings of their
# own, which are too small for whole pages (glibc manual, "Memory Allocation Tunables"). Elsewhere this means nothing.
HUGE_PAGES: Final = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in (("hugetlb", 1), ("mmap_threshold", 1 << 40), ("trim_threshold", 256 << 20))
)


def blas_threads(residents: int) -> int:
    """Threads for one worker's linear algebra: `OPENBLAS_NUM_THREADS`, or its share of the cores."""
    given = os.environ.get("OPENBLAS_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    return max(1, (os.cpu_count() or 1) // max(1, residents))


def worker_environment() -> dict[str, str]:
    """This process's environment without the server's secrets, so that the child imports the same Pippin."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    source = str(Path(pippin.__file__).parent.parent)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = source if not inherited else source + os.pathsep + inherited
    environment["PYTHONUNBUFFERED"] = "1"
    environment["TOKENIZERS_PARALLELISM"] = "true"
    environment["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would advise to install PyTorch
    environment.setdefault("GLIBC_TUNABLES", HUGE_PAGES)
    return environment
