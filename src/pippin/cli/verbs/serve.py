"""`pippin serve`: starts the server, and reports its progress to the user who started it.

The first model's process begins before, or as soon as the options are known; what else the server needs is imported
beside it.
"""

import contextlib
import faulthandler
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from pippin import __version__
from pippin.cli.arguments import option_parser, verb
from pippin.cli.local import open_catalog, settings_of
from pippin.cli.running import RunningServer, announced, end_at_the_end_of, end_with_owner, log_file
from pippin.config import environment
from pippin.config.errors import ConfigError, install_command
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.config.settings import GivenFlag, Settings
from pippin.core.errors import ServerError
from pippin.core.logs import without_secrets
from pippin.runtime.workers.process import Child, end_all

if TYPE_CHECKING:
    from pippin.catalog import Catalog

log = logging.getLogger(__name__)


@verb("serve", parser=option_parser)
def serve(parsed: Namespace) -> int:
    if any(flag.name == "--version" for flag in parsed.given):
        print(f"pippin {__version__}")
        return 0
    faulthandler.enable()  # a crash in a library then prints its traceback
    settings, waiting = settings_of(parsed), parsed.waiting
    if not settings.server.restart:
        return _serve(settings, parsed.given, waiting)

    end_all(waiting)  # each server has its own
    import pippin.api.server  # noqa: F401 - so that no child imports it again
    from pippin.api.listening import open_listeners

    listeners = open_listeners(settings.server)
    own = supervise(settings, listeners)
    return own if isinstance(own, int) else _serve(own, parsed.given, waiting, listeners)


def _serve(
    settings: Settings, given: Sequence[GivenFlag], waiting: list[Child], listeners: Sequence[socket] = ()
) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    settle(waiting, settings.server)
    _begin_log(settings, given)
    end_with_owner()
    return _run(settings, open_catalog(settings), listeners, waiting)


def settle(waiting: list[Child], server: ServerOptions) -> None:
    """Have a process wait for the first model that is loaded at the start, if its worker runs here, and none else."""
    first = next((entry.options for entry in server.models if entry.preload), None)
    if first is None or first.cluster is not None:
        end_all(waiting)
    elif not waiting:
        waiting.append(Child())


def _begin_log(settings: Settings, given: Sequence[GivenFlag]) -> None:
    from pippin.cli.logs import configure_logging

    try:
        configure_logging(settings.server)
    except OSError as error:
        raise ConfigError(f"{settings.server.log_file}: cannot be written ({error.strerror}).") from None
    for note in settings.notes:
        log.log(logging.WARNING if note.severity == "warning" else logging.INFO, "%s", note.text)
    texts = [flag.text for flag in given if flag.text]
    if any(text in settings.server.api_keys or text != without_secrets(text) for text in texts):
        log.warning(
            "Everyone on this machine can read the API key, or an address with one, on the command line (`ps`): set "
            "variables such as PIPPIN_API_KEYS, or keep keys in a file that only you can read, --api-key-file."
        )


def check(server: ServerOptions, catalog: "Catalog") -> None:
    """Raises `ConfigError` for models that are named and can't be served, and where nothing computes models."""
    from pippin.catalog.catalog import is_script

    scripts = [is_script(entry.path) for entry in server.models if entry.listed]
    if find_spec("mlx") is None and not (scripts and all(scripts)):
        raise ConfigError(
            f"MLX is not installed. On Linux: {install_command('cpu')}; for NVIDIA `cuda`, not `cpu`."
        )
    check_models(server.models, catalog)
    check_beside(server, catalog)


def check_models(models: Sequence[ModelEntry], catalog: "Catalog") -> None:
    """Raises `ConfigError` if none of the named models is available, most likely because of a typo. If some are, the
    server starts and reports the others as not ready: a disk may come back."""
    named = [entry for entry in models if entry.listed]
    faults = [fault for entry in named if (fault := _fault_of(entry, catalog)) is not None]
    if named and len(faults) == len(named):
        raise ConfigError(" ".join(faults))


def _fault_of(entry: ModelEntry, catalog: "Catalog") -> str | None:
    """Why a model that the operator named is not here and can't be downloaded; None if it may still be served.

    The name of a model that is not preloaded may refer to one that is added before its first request.
    """
    try:
        catalog.resolve(entry.path, by_operator=True)
    except ServerError as error:
        is_path = entry.path.startswith(("/", "~", "./", "../"))
        damaged = error.report.kind == "load_failed"  # a model from the hub, which is downloaded again
        if is_path or (entry.preload and not damaged and not catalog.can_be_had(entry.path)):
            return error.report.message
    return None


def check_beside(server: ServerOptions, catalog: "Catalog") -> None:
    """Raises `ConfigError` if a model's options name a draft model or an adapter that is not here and can't be
    downloaded: loading the model would fail."""
    from pippin.catalog.catalog import beside

    for options in (server.model_defaults, *(entry.options for entry in server.models)):
        for option, words in beside(options).items():
            if not catalog.can_be_had(words):
                raise ConfigError(
                    f"{option}: {words!r} is no folder and no model that is here, and no repository that can be "
                    "fetched (ORG/NAME, without --offline)."
                )


def _run(settings: Settings, catalog: "Catalog", listeners: Sequence[socket], waiting: list[Child]) -> int:
    from pippin.api.listening import run_server
    from pippin.cli.greeting import Preparation, example_of, greet, served_models
    from pippin.service.service import open_service

    check(settings.server, catalog)
    service = open_service(settings.server, catalog, waiting)
    preparation = Preparation(settings.server, catalog, service)
    until_the_end = contextlib.ExitStack()

    def on_ready(host: str, port: int) -> None:
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        greet(settings.server, address, served_models(settings.server, catalog), example_of(catalog))
        preparation.greeted.set()
        log_path = log_file(settings.server.log_file)
        pid = os.getppid() if settings.server.restart else os.getpid()
        word = RunningServer(pid=pid, address=address, started=time.time(), log=log_path)
        try:
            until_the_end.enter_context(announced(word))
        except OSError as error:  # a service may have no writable folder
            log.warning("`pippin ps` and `stop` can't find this server by themselves: %s.", error)

    with until_the_end:
        return run_server(service, settings, on_ready, preparation.run, listeners)


ASKED: Final = frozenset({signal.SIGINT, signal.SIGTERM})
WATCHED: Final = ASKED | {signal.SIGHUP, signal.SIGCHLD}
YOUNG: Final = 10.0  # seconds; a server that gives up before is not started again
APART: Final = 1.0  # seconds between the starts of two servers


def supervise(settings: Settings, listeners: Sequence[socket]) -> Settings | int:
    """Be the parent of a server that is started again when it dies (`--restart`). Returns more than once: in each
    server's process its settings, in the parent the exit status at the end.

    The parent listens and each server accepts, so clients that connect meanwhile wait instead of being refused. A
    server is a fork of the parent, which has imported everything, so the next one answers at once. Workers end with
    their server.

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
            environment.ask_no_system_for_proxies()
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
