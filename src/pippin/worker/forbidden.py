"""Forbids a worker, whatever a library decides, the model's own Python code, the network when offline, and a change of
how many files it may have open.

Several loaders pass `trust_remote_code=True` to transformers on their own. The interpreter's audit hooks see every code
object just before it runs, and each connection just before it is opened; a hook cannot be removed once it is installed.
"""

import functools
import ipaddress
import logging
import resource
import sys
from pathlib import Path
from typing import Any, Final

from pippin.config.worker_environment import keep_off_the_hub
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec

log = logging.getLogger(__name__)

DYNAMIC_MODULES: Final = "transformers_modules"
"""Transformers copies a model's code into a folder with this name before running it."""


def forbid_foreign_code(spec: WorkerSpec) -> None:
    """Forbid the model's code for the life of this process, unless the operator trusts the model."""
    if spec.options.get("trust_remote_code"):
        log.warning("%s may run Python code of its own: --trust-remote-code is on.", spec.info.id)
        return
    folder = None if spec.info.path is None else Path(spec.info.path)
    if folder is None or not folder.is_dir():
        return
    inside = tuple({f"{path}/" for path in (folder, folder.resolve())})

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "exec":
            return
        source: str = arguments[0].co_filename
        if DYNAMIC_MODULES in source or source.startswith(inside):
            raise ServerError(
                "load_failed",
                f"The model {spec.info.id!r} brings Python code, which is not run unless you start the server with "
                "--trust-remote-code. Do so only if you trust its author.",
            )

    sys.addaudithook(hook)


CONNECTING: Final = frozenset({"socket.connect", "socket.sendto", "socket.getaddrinfo"})


def forbid_network(spec: WorkerSpec) -> None:
    """Forbid connections to other machines for the life of this process if the server is offline.

    Hugging Face libraries are put into offline mode first, so that they use their cache and name what is missing. A
    connection attempted all the same raises `OSError`. A rank must reach the machines of its group, so it gets the
    offline mode only.
    """
    if not spec.offline:
        return
    keep_off_the_hub()
    if spec.rank is not None:
        return

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CONNECTING:
            return
        if event == "socket.getaddrinfo":
            host = arguments[0]
        else:  # the addresses of local sockets are paths
            host = arguments[1][0] if isinstance(arguments[1], tuple) else None
        if not _is_here(host):
            raise OSError("--offline forbids to use the network.")

    sys.addaudithook(hook)


def _is_here(host: object) -> bool:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if name is None or name == "localhost":
        return True
    try:
        return ipaddress.ip_address(str(name)).is_loopback
    except ValueError:
        return False


def keep_file_limit() -> None:
    """Let libraries set any limit of this process from now on but that of open files.

    Importing mlx-lm sets a limit of 2048, and a hard limit of 4096 (mlx_lm.utils). If the hard limit is lower
    (`ulimit -Hn`), the import would fail, and every load with it; if it is higher, it would be lost for the life of the
    process.
    """
    set_limit = resource.setrlimit

    @functools.wraps(set_limit)
    def set_others(which: int, limits: tuple[int, int], /) -> None:
        if which != resource.RLIMIT_NOFILE:
            set_limit(which, limits)

    resource.setrlimit = set_others
