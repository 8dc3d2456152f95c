"""The process that a worker runs in, and the socket to it. It may be started before there is an event loop, and before
it is known what it loads: until it is told, it imports what most models need."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from pippin.config.worker_environment import worker_environment

SOCKET_BUFFER: Final = 1 << 20  # bytes


class Child:
    """A process that was started here, and the socket to it. Ctrl-C in the terminal does not reach it."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        """Start a worker, or the program that reaches one on another machine, whose input and output are the socket."""
        self.link, far = socket.socketpair()
        for end in (self.link, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
        self.link.setblocking(False)
        how: dict[str, Any] = {"stdin": far, "stdout": far, "stderr": subprocess.PIPE}
        if command is None:
            command = (sys.executable, "-m", "pippin.worker", str(far.fileno()), str(os.getpid()))
            how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            how |= {"pass_fds": (far.fileno(),), "env": worker_environment()}
        try:
            self.process = subprocess.Popen(command, bufsize=0, start_new_session=True, **how)
        except BaseException:
            self.link.close()
            raise
        finally:
            far.close()

    def end(self) -> None:
        """End a process that no supervisor has taken over."""
        self.link.close()
        self.process.kill()
        self.process.communicate()


def end_all(waiting: list[Child]) -> None:
    """End the processes that no supervisor has taken over, and forget them."""
    while waiting:
        waiting.pop().end()
