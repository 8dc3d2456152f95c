"""Makes a process, the tests' own or a worker's, take a made-up Mac for its machine."""

import os
from typing import Final

from tests.as_on_a_mac.gpu import Gpu, compute_as_a_gpu
from tests.as_on_a_mac.mac import Mac

SITE: Final = os.path.join(os.path.dirname(__file__), "site")
"""The folder of a `sitecustomize` that does it in every process whose PYTHONPATH has it."""

TAKEN: Final[list[Gpu]] = []
"""The GPU that MLX computes as in this process, where it is a Mac's."""


def take(mac: Mac) -> Gpu:
    """From here on MLX computes as the Mac's GPU, and Pippin finds the Mac's facts. A Mac compiles functions; MLX would
    run a C compiler for that here, for seconds each, which says nothing of Metal."""
    import mlx.core as mx

    from pippin.engines import device

    mx.disable_compile()
    device.find_facts = lambda: mac.facts
    gpu = Gpu()
    gpu.begin(even=mac.even)
    compute_as_a_gpu(setattr, gpu)
    TAKEN.append(gpu)
    return gpu
