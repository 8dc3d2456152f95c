"""A model that is on this machine needs no network: its worker is watched while it loads and answers."""

import asyncio
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


def test_a_model_that_is_here_loads_and_answers_without_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, began, hooks = tmp_path / "connections", tmp_path / "began", tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(WATCH.format(noted=str(noted), began=str(began)))
    monkeypatch.setenv("PYTHONPATH", str(hooks))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)  # nobody but Pippin keeps the libraries from asking
    info = msgspec.structs.replace(read_info(tiny_model("llama", tmp_path / "llama")), id="tiny")

    async def scene() -> None:
        async with scripted_service(info, options=ServerOptions()) as service:
            request = GenerationRequest(model="tiny", prompt="one two", max_tokens=3)
            async with await service.start(Generate(request), model="tiny", id="r") as run:
                assert (await run.collect()).choices[0].finished is not None

    asyncio.run(scene())
    assert began.exists(), "nobody watched"
    assert not noted.exists(), noted.read_text()
