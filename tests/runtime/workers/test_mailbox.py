"""A request's events between worker and client."""

import asyncio
from collections.abc import Awaitable, Callable

from pippin.core.errors import ErrorReport
from pippin.core.events import Counted, Failed, Finished, PartDelta, PartStarted
from pippin.runtime.workers import link as module
from pippin.runtime.workers.link import Mailbox


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


def box(choices: int = 1, on_overflow: Callable[[], None] = lambda: None) -> Mailbox:
    return Mailbox(choices, on_overflow)


def test_a_slow_reader_finds_deltas_joined() -> None:
    async def scene() -> None:
        mailbox = box()
        mailbox.put(PartStarted(0, 0, "text"))
        for number in range(100):
            mailbox.put(PartDelta(0, 0, "x", (), number + 1))
        assert await mailbox.take() == [PartStarted(0, 0, "text"), PartDelta(0, 0, "x" * 100, (), 100)]

    play(scene)


def test_a_generation_ends_with_its_last_choice_and_nothing_comes_after() -> None:
    async def scene() -> None:
        mailbox = box(2)
        mailbox.put(Finished(1, "stop"))
        assert not mailbox.complete
        mailbox.put(Finished(0, "stop"))
        assert mailbox.complete
        mailbox.put(PartDelta(0, 0, "late"))
        assert await mailbox.take() == [Finished(1, "stop"), Finished(0, "stop")]
        assert await mailbox.take() == []

    play(scene)


def test_other_tasks_end_with_their_terminal_event() -> None:
    async def scene() -> None:
        mailbox = box(0)
        mailbox.put(Counted(3))
        assert mailbox.complete

    play(scene)


def test_a_reader_who_lets_too_much_gather_loses_the_rest(monkeypatch: object) -> None:
    async def scene() -> None:
        overflowed: list[bool] = []
        mailbox = box(1, lambda: overflowed.append(True))
        piece = "x" * (module.LARGEST // 1000)
        for _ in range(2 * module.MERGE_AT):
            mailbox.put(PartDelta(0, 0, piece))
        assert overflowed == [True]
        last = (await mailbox.take())[-1]
        assert isinstance(last, Failed)
        assert "too slowly" in last.error.message

    play(scene)


def test_a_failure_wakes_the_reader() -> None:
    async def scene() -> None:
        mailbox = box()
        reading = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        mailbox.fail(ErrorReport(kind="timeout", message="Late."))
        assert isinstance((await reading)[0], Failed)

    play(scene)
