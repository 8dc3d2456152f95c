"""Finds the server for a conversation, or starts one that ends with it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from msgspec import Struct

from pippin.cli.local import fetched, open_catalog, settings_of
from pippin.cli.running import Client, client_of, is_there, running_servers
from pippin.cli.terminal import progress
from pippin.config import environment
from pippin.config.errors import nearest
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from pippin.catalog import Catalog


def _only_one(catalog: "Catalog") -> str:
    """The only model on this machine that chats and fits. Raises `ServerError` if there is none, or several."""
    from pippin.catalog import footprint
    from pippin.config.accelerator import machine_memory

    chatting = [info for info in catalog.models() if info.kind == "language" and info.capabilities.chat]
    memory = machine_memory()
    fitting = [info for info in chatting if footprint(info, catalog.options_for(info)) <= memory]
    if not fitting:
        said = "None of the models here fits into memory." if chatting else "No model that chats is here."
        raise ServerError(
            "model_not_found",
            f"{said} `pippin recommend` names models for this machine, `pippin pull ORG/NAME` fetches one.",
        )
    if len(fitting) == 1:
        return fitting[0].id
    names = ", ".join(info.id for info in fitting)
    raise ServerError("invalid_request", f"Several models are here; name one: {names}.")


LOOK_EVERY: Final = 0.2  # seconds
GRACE: Final = 20.0  # seconds for a server to end after SIGTERM


class Reached(Struct, frozen=True):
    """A reachable server, and the chosen model on it."""

    client: Client
    model: str
    facts: dict[str, Any]


def model_on(client: Client, name: str) -> Reached:
    """The server's model with that name or alias. Raises `ServerError`."""
    facts = client.request("GET", f"/v1/models/{quote(name, safe='/')}")
    return Reached(client, str(facts["id"]), facts)


def find(parsed: Namespace, model: str | None, *, must_know: bool = True) -> Reached | None:
    """The running server if it knows the model, else None. A server named by address `must_know` the model."""
    if not is_there(parsed):
        return None
    try:
        return model_on(client_of(parsed), model or "default")
    except ServerError as error:
        named = must_know and (parsed.server or environment.server_address())
        if named or error.report.kind != "model_not_found":
            raise
        return None


def names_a_model(parsed: Namespace, word: str) -> bool:
    """Whether a word names a model: a repository, a path, or one that the server or this machine has. Raises
    `ServerError` for one that is nearly the name of a model here."""
    if any(letter.isspace() for letter in word):
        return False
    from pippin.catalog.catalog import is_script  # slow to import

    if "/" in word or is_script(word) or (Path(word).expanduser() / "config.json").is_file():
        return True
    if find(parsed, word, must_know=False) is not None:
        return True
    listed: list[str] = []
    if is_there(parsed):
        listed += [str(each["id"]) for each in client_of(parsed).request("GET", "/v1/models")["data"]]
    if not (parsed.server or environment.server_address()):
        catalog = open_catalog(settings_of(parsed))
        if catalog.knows(word):
            return True
        listed += [info.id for info in catalog.models()]
    if meant := nearest(word, listed):
        raise ServerError(
            "model_not_found",
            f"No model {word!r} is here.{meant} `pippin run -m NAME PROMPT` names a model in any case.",
        )
    return False


@contextlib.contextmanager
def reached(parsed: Namespace, model: str | None) -> Iterator[Reached]:
    """The running server if it knows the model, else a new server. A missing model is downloaded first."""
    found = find(parsed, model)
    if found is not None:
        yield found
        return
    name, path = _here(parsed, model)
    given = [word for flag in parsed.given for word in (flag.name, flag.text) if word is not None]
    with started(path, name, given, keep=parsed.keep) as own:
        yield own


def _here(parsed: Namespace, model: str | None) -> tuple[str, str]:
    """The name of a model on this machine, and the argument to serve it by. A missing model is downloaded first."""
    from pippin.catalog.catalog import is_script

    catalog = open_catalog(settings_of(parsed))
    if model is None:
        name = _only_one(catalog)
        return name, name
    info = fetched(catalog, model, f"Downloading {model}:")
    is_path = is_script(model) or Path(model).expanduser().is_dir()
    return info.id, model if is_path else info.id


@contextlib.contextmanager
def started(model: str, name: str, flags: Sequence[str], *, keep: bool) -> Iterator[Reached]:
    """Start a server for a model, which is called `name` there. Unless `keep` is set, it ends with the context or with
    this process."""
    folder = environment.home() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"run-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    command = [sys.executable, "-m", "pippin", "serve", model, "--port", "0", *flags]
    with log.open("wb") as file:
        # In a session of its own: ctrl-C stops an answer, not the server.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if keep else subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=None if keep else environment.owned(),
        )
    ready = False
    with _signals_as_exits():
        try:
            reached = _wait(process, name, log)
            ready = True
            yield reached
        finally:
            if not (keep and ready):
                _end(process)
                if ready:
                    log.unlink(missing_ok=True)


def _wait(process: "subprocess.Popen[bytes]", name: str, log: Path) -> Reached:
    with progress(f"Loading {name}:", bytes_counted=True) as tell:
        while process.poll() is None:
            found = [server for server in running_servers() if server.pid == process.pid]
            if found:
                reached = model_on(Client(found[0].address, environment.client_key()), name)
                if reached.facts.get("state") == "loaded":
                    return reached
                if reached.facts.get("state") == "failed":
                    workers = reached.client.request("GET", "/health").get("workers") or ()
                    said = (each.get("last_error") for each in workers if each.get("id") == reached.model)
                    reason = next(said, None) or "The model could not be loaded."
                    raise ServerError("load_failed", f"{reason} The log: {log}")
                if moved := reached.facts.get("progress"):
                    tell(*moved)
            time.sleep(LOOK_EVERY)
    last = (log.read_text("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
    raise ServerError(
        "load_failed", f"The server ended before it was ready: {last.removeprefix('pippin: ')} Its log: {log}"
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.communicate(timeout=GRACE)  # closes its input too
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def _signals_as_exits() -> Iterator[None]:
    """Let a closed window or `kill` unwind the stack, so that the server is stopped."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, leave) for each in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
