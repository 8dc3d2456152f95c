"""Replicas that several API processes use: two borrowers, whose channels end in one pool of real processes."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pytest

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.completion import Completion
from pippin.core.conversation import Message, Text
from pippin.core.errors import ServerError
from pippin.core.events import Failed
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from pippin.runtime.replicas import processes
from pippin.runtime.replicas.processes import Replicas
from pippin.runtime.workers import stopped
from pippin.service import Service
from pippin.service.lending.borrower import BorrowedPool
from pippin.service.lending.channel import Channel
from pippin.service.lending.lender import Lender
from pippin.service.lending.messages import FromOwner, Lent, ToOwner, WorkerFails
from pippin.service.lending.questions import Questions
from tests.runtime.replicas.test_processes import FAKE_SSH
from tests.service.doubles import StaticCatalog, scripted, scripted_service, write_script

SLOW = {"when": {"user": "slow"}, "say": "one two three four five six", "gap": 0.1}
STALL = {"when": {"user": "stall"}, "fault": {"kind": "stall"}, "say": "x"}
POISON = {"when": {"user": "poison"}, "fault": {"kind": "abort"}, "say": "x"}
REST = {"when": {"user": "."}, "say": "yes"}
WHOLE = "one two three four five six"


@dataclass
class Borrower:
    """An API process beside the first, and what the first one has for it."""

    service: Service
    pool: BorrowedPool = field(init=False)
    lender: Lender = field(init=False)

    def __post_init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._owners: Channel[ToOwner] = Channel(ours, ToOwner, self._asked, lambda: None)
        self._own: Channel[FromOwner] = Channel(theirs, FromOwner, self._told, lambda: None)
        self._questions = Questions(self._own)
        self.pool = BorrowedPool(self._own, self._questions)
        service = self.service
        self.lender = Lender(service.pool, self._owners, service.find, service.fetch, service.complete)

    async def ask(self, *turns: str, id: str) -> str:
        """The text of a whole answer. Raises `ServerError`."""
        messages = tuple(
            Message("assistant" if number % 2 else "user", (Text(text),)) for number, text in enumerate(turns)
        )
        lease = await self.pool.lease(self.service.pool._catalog.resolve("m"))
        try:
            mailbox = lease.worker.submit(id, Generate(GenerationRequest(model="m", messages=messages)), 1)
            mailbox.held_back = True
            completion = Completion()
            for event in await mailbox.take_all():
                if isinstance(event, Failed):
                    raise ServerError.of(event.error)
                completion.add(event)
            return completion.choices[0].text("text")
        finally:
            lease.worker.cancel(id)
            lease.release()

    def die(self) -> None:
        """As when the process is killed: its end of the channel closes, and the first process clears up."""
        self._own.close()
        self.lender.close()
        self._owners.close()

    async def close(self) -> None:
        await self.pool.close(0.0)
        self.die()

    def _asked(self, message: ToOwner, descriptor: int | None) -> None:
        self.lender.receive(message)  # type: ignore[arg-type]

    def _told(self, message: FromOwner, descriptor: int | None) -> None:
        if isinstance(message, Lent | WorkerFails):
            self.pool.receive(message, descriptor)
        else:
            self._questions.answered(message.serial, message)  # type: ignore[union-attr]


@dataclass
class House:
    """A pool with replicas, and the API processes that use it."""

    service: Service
    borrowers: list[Borrower]

    @property
    def group(self) -> Replicas:
        worker = self.service.pool._slots["m"].worker
        assert isinstance(worker, Replicas)
        return worker

    @property
    def running(self) -> list[int]:
        return [process.seat.running for process in self.group._processes]

    async def ask_all(self, count: int, text: str = "slow") -> list[asyncio.Task[str]]:
        """So many requests, in turns from each process, once all of them have their place."""
        asked = [
            asyncio.create_task(
                self.borrowers[number % len(self.borrowers)].ask(f"{text} {number}", id=f"r{number}")
            )
            for number in range(count)
        ]
        await until(lambda: sum(self.running) == count)
        return asked


async def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def house(folder: Path, options: ModelOptions) -> AsyncIterator[House]:
    info = scripted("m", write_script(folder, POISON, STALL, SLOW, REST))
    catalog = StaticCatalog(info, options={"m": options}, sizes={"m": 50 << 20})
    server = ServerOptions(models=(ModelEntry(path="m"),), api_processes=2)
    async with scripted_service(info, options=server, catalog=catalog) as service:
        await service.pool.load("m")
        borrowers = [Borrower(service), Borrower(service)]
        try:
            yield House(service, borrowers)
        finally:
            for borrower in borrowers:
                await borrower.close()


def play(folder: Path, options: ModelOptions, check: Callable[[House], Awaitable[None]]) -> None:
    async def run() -> None:
        async with house(folder, options) as found:
            await check(found)

    asyncio.run(run())


def here(folder: Path) -> ModelOptions:
    return ModelOptions(replicas=2)


def elsewhere(folder: Path) -> ModelOptions:
    """One of the replicas is reached by a command."""
    ssh = folder / "ssh"
    ssh.write_text(FAKE_SSH.format(folder=folder))
    return ModelOptions(
        replica_machines=("127.0.0.1", "127.0.0.2"),
        machine_command=f"sh {ssh} {{machine}} {sys.executable} -m pippin worker {{model}} {{path}}",
    )


everywhere = pytest.mark.parametrize("options", [pytest.param(here, marks=pytest.mark.long), elsewhere])
Options = Callable[[Path], ModelOptions]


@everywhere
def test_requests_of_all_processes_are_spread_over_all_replicas(tmp_path: Path, options: Options) -> None:
    async def check(found: House) -> None:
        asked = await found.ask_all(8)
        assert found.running == [4, 4]
        assert set(await asyncio.gather(*asked)) == {WHOLE}
        assert found.running == [0, 0]

    play(tmp_path, options(tmp_path), check)


def test_a_conversation_stays_with_its_replica_whichever_process_its_turns_come_to(tmp_path: Path) -> None:
    async def check(found: House) -> None:
        seats = [process.seat for process in found.group._processes]
        turns: dict[str, list[str]] = {name: [f"{name} " * 200] for name in ("ada", "ben", "cleo", "dan")}
        homes: dict[str, set[int]] = {name: set() for name in turns}
        for number in range(4):
            for name, said in turns.items():
                before = [len(seat.seen) for seat in seats]
                answer = await found.borrowers[number % 2].ask(*said, id=f"{name}{number}")
                [home] = {index for index, seat in enumerate(seats) if len(seat.seen) > before[index]}
                homes[name].add(home)
                said += [answer, f"{name} goes on {number}. " * 30]
        assert [len(each) for each in homes.values()] == [1] * 4
        assert set.union(*homes.values()) == {0, 1}

    play(tmp_path, ModelOptions(replicas=2), check)


@pytest.mark.parametrize("options", [here, pytest.param(elsewhere, marks=pytest.mark.long)])
def test_a_killed_replica_costs_no_whole_answer_of_any_process_and_comes_back(
    tmp_path: Path, options: Options
) -> None:
    async def check(found: House) -> None:
        asked = await found.ask_all(8)
        await asyncio.sleep(0.3)
        victim = found.group._processes[1]
        first = victim.worker
        os.kill(first.pid or 0, signal.SIGKILL)
        assert set(await asyncio.gather(*asked)) == {WHOLE}
        await until(lambda: victim.worker is not first and victim.loaded)
        again = await found.ask_all(4)
        assert found.running == [2, 2]
        assert set(await asyncio.gather(*again)) == {WHOLE}

    play(tmp_path, options(tmp_path), check)


@pytest.mark.long
def test_a_request_that_kills_its_workers_is_begun_again_once(tmp_path: Path) -> None:
    async def check(found: House) -> None:
        with pytest.raises(ServerError, match="died"):
            await found.borrowers[0].ask("poison", id="p")
        assert not found.group.died.done()
        assert await found.borrowers[1].ask("more", id="m") == "yes"

    play(tmp_path, ModelOptions(replicas=3), check)


@pytest.mark.long
def test_the_death_of_all_is_told_with_a_sentence_and_the_next_request_starts_them(tmp_path: Path) -> None:
    async def check(found: House) -> None:
        group = found.group
        asked = await found.ask_all(4)
        for process in group._processes:
            os.kill(process.worker.pid or 0, signal.SIGKILL)
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(end, ServerError) and "died" in end.report.message for end in ends), ends
        await until(group.died.done)
        assert await found.borrowers[0].ask("more", id="m") == "yes"
        assert found.group is not group

    play(tmp_path, ModelOptions(replicas=2), check)


@everywhere
def test_a_process_that_dies_leaves_its_seats_and_its_requests_are_cancelled(
    tmp_path: Path, options: Options
) -> None:
    async def check(found: House) -> None:
        asked = await found.ask_all(8)
        found.borrowers[0].die()
        await until(lambda: found.running == [2, 2])
        kept, lost = asked[1::2], asked[0::2]
        assert set(await asyncio.gather(*kept)) == {WHOLE}
        for each in lost:
            each.cancel()
        stats = await found.group.stats()
        assert (stats.running, stats.waiting) == (0, 0)

    play(tmp_path, options(tmp_path), check)


def test_a_replica_is_drained_of_what_other_processes_have_there(tmp_path: Path) -> None:
    async def check(found: House) -> None:
        asked = await found.ask_all(4)
        leaving = found.group._processes[1]
        removing = asyncio.create_task(found.group._remove(leaving))
        await asyncio.sleep(0.1)
        assert not leaving.worker.died.done()
        assert await found.borrowers[0].ask("more", id="m") == "yes"
        assert leaving.seat.running == 2
        assert set(await asyncio.gather(*asked)) == {WHOLE}
        await removing
        assert found.running == [0]

    play(tmp_path, ModelOptions(replicas=2), check)


@pytest.mark.long
def test_replicas_follow_the_load_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "EASY_LOOKS", 5)
    monkeypatch.setattr(processes, "LOOK_EVERY", 0.05)

    async def check(found: House) -> None:
        many = partial(found.ask_all, 4)
        asked = await many()
        await until(lambda: len(found.group._processes) == 2)
        assert set(await asyncio.gather(*asked)) == {WHOLE}
        await until(lambda: len(found.group._processes) == 1)

    play(tmp_path, ModelOptions(replicas="1-2", max_num_seqs=2), check)


def test_an_unload_ends_what_other_processes_ask(tmp_path: Path) -> None:
    async def check(found: House) -> None:
        found.service.pool._options = ServerOptions(drain_timeout=0.0)
        asked = await found.ask_all(4)
        await found.service.pool.unload("m")
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(end, ServerError) and "unloaded" in end.report.message for end in ends), ends

    play(tmp_path, ModelOptions(replicas=2), check)


@pytest.mark.long
def test_a_command_that_is_stopped_is_ended_and_its_requests_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped, "STOPPED_FOR", 1.0)

    async def check(found: House) -> None:
        asked = await found.ask_all(4)
        psutil.Process(found.group._processes[1].worker.pid or 0).suspend()
        assert set(await asyncio.gather(*asked)) == {WHOLE}
        await until(lambda: all(process.loaded for process in found.group._processes))

    play(tmp_path, elsewhere(tmp_path), check)


def test_requests_of_other_processes_are_counted_while_a_step_takes_long(tmp_path: Path) -> None:
    async def check(found: House) -> None:
        asked = asyncio.create_task(found.borrowers[0].ask("slow", id="guest"))
        stats = found.service.pool.stats
        while not (await stats("m")).running:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.01)
        stalled = asyncio.create_task(found.borrowers[1].ask("stall", id="stalled"))
        await asyncio.sleep(0.2)
        last = await stats("m")
        assert "guest" in [each.id for each in last.requests]
        assert last.running
        for each in (asked, stalled):
            each.cancel()

    play(tmp_path, ModelOptions(), check)


def test_nothing_is_left_of_processes_that_reached_another_machine(tmp_path: Path) -> None:
    async def check(found: House) -> None:
        assert await found.borrowers[0].ask("more", id="m") == "yes"
        command = psutil.Process(found.group._processes[1].worker.pid or 0)
        below = command.children(recursive=True)
        assert below
        below[-1].suspend()  # it reads nothing of the end of its input
        await found.group.stop(0.0)
        gone, _ = psutil.wait_procs([command, *below], timeout=10)
        assert len(gone) == 1 + len(below)

    play(tmp_path, elsewhere(tmp_path), check)
