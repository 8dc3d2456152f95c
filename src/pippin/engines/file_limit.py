"""Keeps mlx-lm from changing how many files this process may have open.

Importing mlx-lm sets a limit of 2048, and a hard limit of 4096 (mlx_lm.utils). If the hard limit is lower
(`ulimit -Hn`), the import would fail, and every load with it; if it is higher, it would be lost for the life of the
process.
"""

import functools

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def keep_file_limit() -> None:
    """Let libraries set any limit of this process from now on but that of open files."""
    if resource is None:
        return
    set_limit = resource.setrlimit

    @functools.wraps(set_limit)
    def set_others(which: int, limits: tuple[int, int], /) -> None:
        if which != resource.RLIMIT_NOFILE:
            set_limit(which, limits)

    resource.setrlimit = set_others
