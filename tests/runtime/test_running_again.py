"""Requests whose worker dies: they run again on the next one, and a stream goes on where it was."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from pippin.core.completion import collect
from pippin.core.conversation import Message, Text, Tool
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import (
    Accepted,
    Event,
    Failed,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    Progress,
    Restarted,
    Token,
)
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.runtime.workers.link import DIFFERS, Mailbox
from pippin.service.service import Run, Service
from tests.runtime import processes
from tests.service.doubles import events_of, scripted, scripted_service, write_script

LOST = ErrorReport(kind="worker_died", message="The process died.")
WORDS = "one two three four five six seven eight nine ten "


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


def token(number: int) -> tuple[Token, ...]:
    return (Token(number, b"x", -0.5),)


ANSWER: list[Event] = [
    PartStarted(0, 0, "reasoning"),
    PartDelta(0, 0, "Hm, ", token(1), 1),
    PartDelta(0, 0, "so é", token(2), 2),
    PartEnded(0, 0),
    PartStarted(0, 1, "text"),
    PartDelta(0, 1, "It ", token(3), 3),
    PartDelta(0, 1, "rains.", token(4), 4),
    PartEnded(0, 1),
    PartStarted(0, 2, "tool_call", "call_a", "look"),
    PartDelta(0, 2, '{"at": ', token(5), 5),
    PartDelta(0, 2, "1}", token(6), 6),
    PartEnded(0, 2),
    Finished(0, "tool_calls"),
]


def resuming(choices: int = 1) -> Mailbox:
    return Mailbox(choices, lambda: None, lambda error: True, resumes=True)


def joined(events: Sequence[Event]) -> object:
    return [(part.kind, part.id, part.text, part.tokens) for part in collect(events).choices[0].parts]


@pytest.mark.parametrize("before", range(1, len(ANSWER)))
@pytest.mark.parametrize("merged", [False, True])
def test_a_reader_gets_each_token_once_wherever_the_worker_was_lost(before: int, merged: bool) -> None:
    async def scene() -> None:
        mailbox = resuming()
        for event in (Accepted(3), *ANSWER[:before]):
            mailbox.put(event)
        read = await mailbox.take()
        mailbox.fail(LOST)
        slow = resuming()
        for event in ANSWER:
            slow.put(event)
        again = await slow.take() if merged else ANSWER  # cut otherwise than the first time
        for event in (Accepted(3), Progress(3, 3), *again):
            other = PartStarted(0, 2, "tool_call", "call_b", "look") if event == ANSWER[8] else event
            mailbox.put(other)
        read += await mailbox.take()
        assert sum(isinstance(event, Accepted) for event in read) == 1
        assert [event for event in read if isinstance(event, PartStarted | PartEnded | Finished)] == [
            event if before > 8 or event != ANSWER[8] else PartStarted(0, 2, "tool_call", "call_b", "look")
            for event in ANSWER
            if isinstance(event, PartStarted | PartEnded | Finished)
        ]
        assert [each[2:] for each in joined(read)] == [each[2:] for each in joined(ANSWER)]  # type: ignore[attr-defined]

    play(scene)


@pytest.mark.parametrize(
    "other",
    [
        [PartStarted(0, 0, "text")],
        [PartStarted(0, 0, "reasoning"), PartDelta(0, 0, "Ha")],
        [PartStarted(0, 0, "reasoning"), PartDelta(0, 0, "H"), PartEnded(0, 0)],
        [
            PartStarted(0, 0, "reasoning"),
            PartDelta(0, 0, "Hm, so é", (*token(1), *token(2))),
            PartDelta(0, 0, "!"),
        ],
        [Finished(0, "stop")],
    ],
)
def test_an_answer_that_comes_otherwise_breaks_off(other: list[Event]) -> None:
    async def scene() -> None:
        mailbox = resuming()
        for event in ANSWER[:6]:
            mailbox.put(event)
        await mailbox.take()
        mailbox.fail(LOST)
        for event in other:
            mailbox.put(event)
        assert await mailbox.take() == [Failed(DIFFERS)]

    play(scene)


def test_two_losses_in_a_row_lose_no_token() -> None:
    async def scene() -> None:
        mailbox = resuming()
        read: list[Event] = []
        for end in (4, 2, 9, len(ANSWER)):
            for event in ANSWER[:end]:
                mailbox.put(event)
            read += await mailbox.take() if end in (4, 9, len(ANSWER)) else []
            if end < len(ANSWER):
                mailbox.fail(LOST)
        assert joined(read) == joined(ANSWER)

    play(scene)


def test_an_answer_that_is_held_back_starts_over() -> None:
    async def scene() -> None:
        mailbox = resuming()
        mailbox.held_back = True
        mailbox.put(ANSWER[0])
        await mailbox.take()
        mailbox.fail(LOST)
        assert await mailbox.take() == [Restarted()]
        mailbox.put(PartStarted(0, 0, "text"))
        assert await mailbox.take() == [PartStarted(0, 0, "text")]

    play(scene)


def generation(text: str = "Hi", **fields: Any) -> Generate:
    return Generate(GenerationRequest(model="m", messages=(Message("user", (Text(text),)),), **fields))


async def begin(service: Service, id: str, text: str = "Hi", **fields: Any) -> Run:
    return await service.start(generation(text, **fields), model="m", id=id)


async def whole(service: Service, id: str, text: str = "Hi") -> str:
    async with aclosing(await begin(service, id, text)) as run:
        return (await run.collect()).choices[0].text("text")


def kill(service: Service) -> None:
    processes.signal(service.pool.states()[0].pid, signal.SIGKILL)


async def until_said(run: Run, count: int) -> list[Event]:
    events: list[Event] = []
    while sum(isinstance(event, PartDelta) for event in events) < count:
        events += await run.take()
    return events


async def rest(run: Run) -> list[Event]:
    async with asyncio.timeout(30):
        return [event async for event in events_of(run)]


def test_streams_go_on_and_whole_answers_start_over_when_their_worker_is_killed(tmp_path: Path) -> None:
    async def scene() -> None:
        call = {"name": "look", "arguments": {"at": "one two three"}}
        script = write_script(
            tmp_path,
            {"when": {"user": "call"}, "think": "Hm, well. ", "say": WORDS, "calls": [call], "gap": 0.02},
            {"when": {"user": "any"}, "any_of": [f"{number} {WORDS}" for number in range(9)], "gap": 0.02},
            {"say": WORDS, "gap": 0.02},
        )
        async with scripted_service(scripted("m", script)) as service:
            fields: dict[str, dict[str, Any]] = {
                "plain": {},
                "call": {"tools": (Tool("look"),), "logprobs": 1},
                "any": {"n": 3, "sampling": Sampling(temperature=1.0)},  # the server draws the seed
            }
            quiet = {}
            for name in ("plain", "call"):
                async with aclosing(await begin(service, f"q{name}", name, **fields[name])) as run:
                    quiet[name] = collect(await rest(run))
            runs = {name: await begin(service, name, name, **own) for name, own in fields.items()}
            held = asyncio.create_task(whole(service, "held"))
            read = {name: await until_said(run, 4) for name, run in runs.items()}
            kill(service)
            for name, run in runs.items():
                completion = collect(read[name] + await rest(run))
                for choice in completion.choices:
                    assert choice.finished is not None
                if name == "any":
                    assert all(choice.text("text")[1:] == f" {WORDS}" for choice in completion.choices)
                    assert len(completion.choices) == 3
                else:
                    told = [
                        (part.kind, part.name, part.text, len(part.tokens))
                        for part in quiet[name].choices[0].parts
                    ]
                    assert [
                        (part.kind, part.name, part.text, len(part.tokens))
                        for part in completion.choices[0].parts
                    ] == told
                await run.aclose()
            assert await held == WORDS
            assert service.pool.states()[0].restarts == 1
            assert service.active == 0

    play(scene)


async def next_process(service: Service, seen: set[int | None], *, loaded: bool) -> int | None:
    """The process that is none of those, once it has loaded the weights, or while it does."""
    while True:
        for state in service.pool.states():
            there = state.state == "loaded" if loaded else state.stage == "weights"
            if there and state.pid not in seen:
                return state.pid
        await asyncio.sleep(0.01)


def test_requests_wait_for_a_load_that_is_killed_and_told_if_it_is_each_time(tmp_path: Path) -> None:
    async def scene() -> None:
        script = write_script(tmp_path, load_seconds=0.5)
        async with scripted_service(scripted("m", script)) as service:
            for kills in (2, 3):
                answers = [asyncio.create_task(whole(service, f"r{number}")) for number in range(3)]
                seen: set[int | None] = {None}
                for _ in range(kills):
                    seen.add(await next_process(service, seen, loaded=False))
                    kill(service)
                if kills == 2:
                    assert await asyncio.gather(*answers) == ["Hi"] * 3
                    await service.pool.unload("m")
                    continue
                for failed in await asyncio.gather(*answers, return_exceptions=True):
                    assert isinstance(failed, ServerError)
                    assert (failed.report.kind, "signal 9" in failed.report.message) == ("load_failed", True)

    play(scene)


def test_a_request_that_ends_its_worker_each_time_is_told_and_refused_and_others_are_answered(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        poison = {"when": {"user": "bad"}, "say": "x", "fault": {"kind": "abort"}}
        async with scripted_service(
            scripted("m", write_script(tmp_path, poison, {"say": WORDS, "gap": 0.05}))
        ) as service:
            beside = [await begin(service, f"b{number}") for number in range(2)]
            read = [await until_said(run, 1) for run in beside]
            with pytest.raises(ServerError, match="signal 6"):
                await whole(service, "bad", "bad")
            for events, run in zip(read, beside, strict=True):
                assert collect(events + await rest(run)).choices[0].text("text") == WORDS
                await run.aclose()
            restarts = service.pool.states()[0].restarts
            assert restarts <= 3
            with pytest.raises(ServerError, match="has ended the process") as refused:
                await whole(service, "bad", "bad")
            assert refused.value.report.retry_after
            assert "signal 6" in refused.value.report.message
            assert await whole(service, "good") == WORDS
            assert service.pool.states()[0].restarts <= restarts + 1
            assert service.active == 0

    play(scene)


def test_a_request_that_was_alone_with_two_workers_that_died_runs_no_third_time(tmp_path: Path) -> None:
    async def scene() -> None:
        poison = {"when": {"user": "bad"}, "say": "x y z", "fault": {"kind": "exit", "after": 2}}
        async with scripted_service(scripted("m", write_script(tmp_path, poison))) as service:
            with pytest.raises(ServerError, match="status 3"):
                await whole(service, "bad", "bad")
            assert service.pool.states()[0].loads == 2

    play(scene)


def test_kills_from_outside_blame_no_request(tmp_path: Path) -> None:
    async def scene() -> None:
        script = write_script(tmp_path, {"say": WORDS, "delay": 0.7})
        async with scripted_service(scripted("m", script)) as service:
            asking = asyncio.create_task(whole(service, "r"))
            seen: set[int | None] = {None}
            for _ in range(4):
                seen.add(await next_process(service, seen, loaded=True))
                kill(service)
            assert await asking == WORDS
            assert service.pool.states()[0].restarts == 4

    play(scene)
