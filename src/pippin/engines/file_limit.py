"""Keeps mlx-lm from changing how many files this process may have open.

Its import asks for 2048, and for 4096 at most (`mlx_lm/utils.py`). Where fewer are allowed at most (`ulimit -Hn`), that
import would fail, and with it every load; where more are, they would be given up for the life of the process.
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
    """Within this context libraries may be imported that set the limit of open files: it stays as it is."""
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
