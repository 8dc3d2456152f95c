"""How much memory models may take together."""

import psutil

from pippin.config.server_options import ServerOptions


def memory_budget(options: ServerOptions) -> int:
    """Bytes: what the operator set, or a share of the machine's memory."""
    if options.memory_budget_gb is not None:
        return int(options.memory_budget_gb * 1e9)
    return int(psutil.virtual_memory().total * options.memory_percent)
