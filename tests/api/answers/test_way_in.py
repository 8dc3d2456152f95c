"""The way of a request from its decoded body to the worker's socket is short."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pippin
from pippin.api.app import create_app, open_api
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.config.settings import Settings
from pippin.core.link import Submit
from pippin.runtime.workers.link import Link
from tests.api.fakes import client_of
from tests.service.doubles import scripted, scripted_service

SOURCE = str(Path(pippin.__file__).parent)
FIRST = "Handler.generate"
MOST_FUNCTIONS = 9


def functions_of(frame: FrameType | None) -> list[str]:
    """The functions of Pippin on this stack, the outermost first."""
    found: list[str] = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCE):
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return found[::-1]


def test_a_chat_goes_to_its_worker_in_few_functions_and_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[asyncio.Task[Any], list[str]] = {}
    ways: list[tuple[list[str], list[str]]] = []
    send = Link.send

    def noting(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **how: Any) -> Any:
        task = asyncio.Task(work, loop=loop, **how)
        made[task] = functions_of(sys._getframe())
        return task

    def noted(self: Link, message: Any) -> bool:
        if isinstance(message, Submit):
            task = asyncio.current_task()
            assert task is not None
            ways.append((made[task], functions_of(sys._getframe().f_back)))
        return send(self, message)

    async def play() -> None:
        asyncio.get_running_loop().set_task_factory(noting)
        options = ServerOptions(models=(ModelEntry(path="scripted"),))
        async with scripted_service(scripted()) as service:
            async with client_of(create_app(open_api(service, Settings(server=options)))) as client:
                body = {"model": "default", "messages": [{"role": "user", "content": "Hello"}]}
                reply = await client.post("/v1/chat/completions", json=body, timeout=60)
            assert reply.status_code == 200

    monkeypatch.setattr(Link, "send", noted)
    asyncio.run(play())
    [(before, after)] = ways  # on both sides of the one task
    assert FIRST in before, before
    functions = [*before[before.index(FIRST) :], "Handler.prepare", *after, "Link.send"]
    assert len(functions) <= MOST_FUNCTIONS, functions
