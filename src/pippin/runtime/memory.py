"""How much memory models may take together."""

from pippin.config.accelerator import device_memory
from pippin.config.server_options import ServerOptions


def memory_budget(options: ServerOptions) -> int:
    """Bytes: what the operator set, or a share of the memory that weights lie in."""
    if options.memory_budget_gb is not None:
        return int(options.memory_budget_gb * 1e9)
    return int(device_memory() * options.memory_percent)
