"""Keeps mlx-lm from changing how many files this process may have open.

Importing mlx-lm sets a limit of 2048, and a hard limit of 4096 (mlx_lm.utils). If the hard limit is lower
(`ulimit -Hn`), the import would fail, and every load with it; if it is higher, it would be lost for the life of the
process.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


@contextmanager
def own_file_limit() -> Iterator[None]:
    """Within this context, libraries that set the limit of open files may be imported; the limit does not change."""
    if resource is None:
        yield
        return
    set_limit = resource.setrlimit

    @functools.wraps(set_limit)
    def set_others(which: int, limits: tuple[int, int], /) -> None:
        if which != resource.RLIMIT_NOFILE:
            set_limit(which, limits)

    resource.setrlimit = set_others
    try:
        yield
    finally:
        resource.setrlimit = set_limit
