"""The number of files and connections that the system lets this process have open."""

import contextlib
import resource
from typing import Final

MOST: Final = 65_536


def allow_many() -> None:
    """Every connection takes one, and macOS starts a process with 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a further limit, which it doesn't tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
