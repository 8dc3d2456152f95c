"""Ties the worker's life to the API server's: whatever way that dies, the worker ends."""

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent's thread dies (Linux; elsewhere the socket tells)."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return  # the socket's end still tells
    if os.getppid() != parent:  # it died before the kernel knew our wish
        os._exit(0)


def end_now(status: int) -> None:
    """Leave without running anything more: threads may hang in foreign code."""
    sys.stderr.flush()
    os._exit(status)
