"""A parent of the server's process, which starts it again when it dies (`--restart`).

The parent listens and each server accepts, so clients that connect meanwhile wait instead of being refused. A server is
a fork of the parent, which has imported everything, so the next one answers at once. Workers end with their server.
"""

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from socket import socket
from typing import Final

from msgspec.structs import replace

from pippin.cli.running import end_at_the_end_of
from pippin.config.settings import Settings

ASKED: Final = frozenset({signal.SIGINT, signal.SIGTERM})
WATCHED: Final = ASKED | {signal.SIGHUP, signal.SIGCHLD}
YOUNG: Final = 10.0  # seconds; a server that gives up before is not started again
APART: Final = 1.0  # seconds between the starts of two servers


def supervise(settings: Settings, listeners: Sequence[socket]) -> Settings | int:
    """Returns more than once: in each server's process its settings, in the parent the exit status at the end.

    Responses that are stored nowhere else are kept in a file for as long as the parent lives.
    """
    folder = Path(tempfile.mkdtemp(prefix="pippin-"))
    if settings.server.response_store is None:
        store = str(folder / "responses.sqlite3")
        settings = replace(settings, server=replace(settings.server, response_store=store))
    signal.signal(signal.SIGCHLD, lambda *_: None)  # where it is ignored, it can't be waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    while True:
        begun = time.monotonic()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            os.setsid()  # ctrl-C in the terminal is meant for the parent, which passes it on
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
            # The pipe ends with the parent.
            watch = threading.Thread(target=end_at_the_end_of, args=(reading,), name="parent", daemon=True)
            watch.start()
            return settings
        os.close(reading)
        status, asked = _until_ended(pid, listeners)
        os.close(writing)
        lived = time.monotonic() - begun
        if asked or status == 0 or (status > 0 and lived < YOUNG):
            shutil.rmtree(folder, ignore_errors=True)
            return status if status >= 0 else 128 - status
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        print(f"pippin: the server ended {how}; it is started again.", file=sys.stderr, flush=True)
        time.sleep(max(0.0, APART - lived))


def _until_ended(pid: int, listeners: Sequence[socket]) -> tuple[int, bool]:
    """Pass signals on to a server until it ends; returns its exit status (or a negative signal number), and whether it
    was asked to stop."""
    asked = False
    while True:
        number = signal.sigwait(WATCHED)
        if number in ASKED:
            asked = True
            for listener in listeners:  # a server that stops accepts no more, and nobody else does
                listener.close()
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), asked
        if number != signal.SIGCHLD:
            os.kill(pid, number)
