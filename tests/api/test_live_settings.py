"""How often the settings are read again."""

import asyncio

import pytest

from pippin.api.live_settings import Reloads


def test_what_is_asked_for_during_a_reload_is_done_after_it() -> None:
    begun: list[int] = []

    async def play() -> None:
        gate = asyncio.Event()

        async def reload() -> None:
            begun.append(len(begun))
            await gate.wait()

        reloads = Reloads(reload)
        reloads.ask()
        await asyncio.sleep(0)
        assert begun == [0]
        for _ in range(3):
            reloads.ask()
        gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == [0, 1]
        reloads.ask()
        await asyncio.sleep(0)
        assert begun == [0, 1, 2]

    asyncio.run(play())


def test_a_reload_that_fails_is_said_and_keeps_no_later_one_away(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> int:
        tries = 0

        async def reload() -> None:
            nonlocal tries
            tries += 1
            raise OSError("the disk is gone")

        reloads = Reloads(reload)
        for _ in range(2):
            reloads.ask()
            await asyncio.sleep(0)
        return tries

    assert asyncio.run(play()) == 2
    assert caplog.text.count("could not be read again") == 2
