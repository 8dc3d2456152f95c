"""The environment of worker processes."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pippin

if TYPE_CHECKING:
    from pippin.core.models import RankSpec

# A worker runs model code and needs none of the operator's secrets: variables not listed here are withheld.
PASSED: Final = frozenset(
    "PATH HOME USER LOGNAME SHELL PWD TZ TZDIR LANG LANGUAGE TMPDIR TMP TEMP VIRTUAL_ENV CONDA_PREFIX HOSTNAME "
    "XDG_CACHE_HOME XDG_DATA_HOME XDG_CONFIG_HOME XDG_RUNTIME_DIR LD_LIBRARY_PATH LD_PRELOAD GLIBC_TUNABLES "
    "SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY "
    "PIPPIN_HOME CC CXX SYSTEMROOT".split()
)
FAMILIES: Final = tuple(
    "LC_ PYTHON DYLD_ HF_ HUGGINGFACE_ TRANSFORMERS_ TOKENIZERS_ SAFETENSORS_ MLX_ METAL_ MTL_ CUDA_ CUDNN_ CUBLAS_ "
    "NVIDIA_ NCCL_ OMP_ KMP_ OPENBLAS_ GOTO_ BLIS_ MKL_ VECLIB_ NUMEXPR_ NPY_ RAYON_ RUST_ MALLOC_ FFMPEG_ AV_ "
    "AGX_ NUMBA_ TORCH_ PYTORCH_ ESPEAK_ PHONEMIZER_ COVERAGE_".split()
)
"""Name prefixes of variables that MLX, CUDA, BLAS, tokenizers, Hugging Face caches and the like read."""
SECRET: Final = re.compile(r"(^|_)(TOKEN|SECRET|KEY|KEYS|PASSWORD|PASSWD|CREDENTIALS?)(_|$)", re.IGNORECASE)
MORE: Final = "PIPPIN_WORKER_VARIABLES"
"""The operator's own list, comma-separated: variables that workers get whatever their names."""

# Every token reads all weights, so the cost of address translation shows: with pages of 2 MiB, a step of a small model
# was measured 1.3 to 6 times as fast, most on virtual machines with fragmented memory. glibc requests such pages for
# the heap (hugetlb=1). Large arrays must be placed there instead of in mappings of their own, which are too small for
# whole pages (glibc manual, "Memory Allocation Tunables"). Other systems ignore the variable.
HUGE_PAGES: Final = ":".join(
    f"glibc.malloc.{name}={value}"
    for name, value in (("hugetlb", 1), ("mmap_threshold", 1 << 40), ("trim_threshold", 256 << 20))
)


def blas_threads(residents: int) -> int:
    """BLAS threads for one worker: `OPENBLAS_NUM_THREADS`, or its share of the cores."""
    given = os.environ.get("OPENBLAS_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    return max(1, (os.cpu_count() or 1) // max(1, residents))


def worker_environment() -> dict[str, str]:
    """The variables that workers inherit from this process, and those that Pippin sets for them.

    The child imports the same Pippin and finds the same libraries and caches.
    """
    more = frozenset(name.strip() for name in os.environ.get(MORE, "").split(","))
    environment = {name: value for name, value in os.environ.items() if name in more or _passes(name, value)}
    source = str(Path(pippin.__file__).parent.parent)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = source if not inherited else source + os.pathsep + inherited
    environment["PYTHONUNBUFFERED"] = "1"
    environment["TOKENIZERS_PARALLELISM"] = "true"
    environment["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would suggest installing PyTorch
    environment.setdefault("GLIBC_TUNABLES", HUGE_PAGES)
    return environment


def keep_off_the_hub() -> None:
    """Put Hugging Face libraries into offline mode in this process; call it before they are imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1")


def multiply_exactly() -> None:
    """Have MLX multiply numbers of 32 bits as such in this process, unless the operator has set its variable; call it
    before MLX multiplies. On an M5 and with CUDA it would round those of several rows to 19 bits, and not of one."""
    os.environ.setdefault("MLX_ENABLE_TF32", "0")


@contextmanager
def rank_environment(rank: "RankSpec") -> Iterator[None]:
    """Within this context, `mx.distributed.init` in this process finds the other ranks: it reads their addresses from
    the variables that `mlx.launch` would set.

    `jaccl` also needs a file with the machines' devices (`MLX_IBV_DEVICES`), and `MLX_JACCL_RING=1` if they form a
    ring; the operator sets both.
    """
    host, _, port = rank.coordinator.rpartition(":")
    found = {"MLX_RANK": str(rank.rank), "MLX_WORLD_SIZE": str(rank.size)}
    found |= {"MLX_JACCL_COORDINATOR": rank.coordinator, "NCCL_HOST_IP": host, "NCCL_PORT": port}
    import json
    import tempfile  # slow to import, and a rank is rare

    with tempfile.TemporaryDirectory(prefix="pippin-rank-") as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[each] for each in rank.hosts]))
        os.environ.update(found, MLX_HOSTFILE=str(hosts))
        yield


def choose_gpu(rank: "RankSpec") -> None:
    """Restrict this process to one GPU if several `nccl` ranks share the machine; call it before MLX is loaded. GPUs
    are taken from `CUDA_VISIBLE_DEVICES` if it is set, in the order in which `mlx.launch` assigns them."""
    own = rank.hosts[rank.rank].rpartition(":")[0]
    neighbours = [place for place, host in enumerate(rank.hosts) if host.rpartition(":")[0] == own]
    if rank.backend != "nccl" or len(neighbours) == 1:
        return
    listed = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    place = neighbours.index(rank.rank)
    os.environ["CUDA_VISIBLE_DEVICES"] = listed[place % len(listed)] if listed else str(place)


def _passes(name: str, value: str) -> bool:
    """Whether a variable may reach a worker. Proxy variables also exist in lower case, and may contain a password."""
    if name.upper().endswith("_PROXY") and "@" in value:
        return False
    known = name.upper() in PASSED or name.startswith(FAMILIES)
    return known and SECRET.search(name) is None
