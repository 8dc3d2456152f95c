"""A model that is on this machine needs no network: its worker is watched while it loads and answers."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from pippin.catalog.info import read_info
from pippin.config.options.server import ServerOptions
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from tests.engines.tiny_models import tiny_model
from tests.service.doubles import scripted_service

WATCH = """
import socket, sys

def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        address = arguments[0] if event == "socket.getaddrinfo" else arguments[1]
        if not isinstance(address, bytes) and arguments[0] is not None and "AF_UNIX" not in repr(arguments[0]):
            open({noted!r}, "a").write(f"{{event}} {{address}}\\n")
            raise OSError("there is no network here")

sys.addaudithook(watch)
open({began!r}, "w").close()
"""

TRIES = """
import os, socket, sys

def watch(event, arguments):
    if event == "import" and arguments[0] == "transformers":
        try:
            socket.create_connection(("192.0.2.1", 9), timeout=0.1)
        except OSError as error:
            told = os.environ.get("HF_HUB_OFFLINE")
            open({noted!r}, "a").write(f"{{told}} {{error}}\\n")

sys.addaudithook(watch)
"""


def answers_once(folder: Path, options: ServerOptions) -> None:
    """A tiny model is loaded by such a server, and answers."""
    info = msgspec.structs.replace(read_info(tiny_model("llama", folder / "llama")), id="tiny")

    async def scene() -> None:
        async with scripted_service(info, options=options) as service:
            request = GenerationRequest(model="tiny", prompt="one two", max_tokens=3)
            async with aclosing(await service.start(Generate(request), model="tiny", id="r")) as run:
                assert (await run.collect()).choices[0].finished is not None

    asyncio.run(scene())


def test_no_library_in_a_worker_of_an_offline_server_reaches_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, hooks = tmp_path / "tries", tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(TRIES.format(noted=str(noted)))
    monkeypatch.setenv("PYTHONPATH", str(hooks))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    answers_once(tmp_path, ServerOptions(offline=True))
    assert noted.read_text().splitlines()[0] == "1 --offline forbids to use the network."


def test_a_model_that_is_here_loads_and_answers_without_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, began, hooks = tmp_path / "connections", tmp_path / "began", tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(WATCH.format(noted=str(noted), began=str(began)))
    monkeypatch.setenv("PYTHONPATH", str(hooks))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)  # nobody but Pippin keeps the libraries from asking
    answers_once(tmp_path, ServerOptions())
    assert began.exists(), "nobody watched"
    assert not noted.exists(), noted.read_text()
