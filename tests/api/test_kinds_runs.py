"""How requests that are no generation end: by a hang-up, by a failure before and after the first byte."""

import asyncio
import json

import pytest

from pippin.core.events import Accepted, Event, Progress, SpeechChunk
from pippin.core.tasks import Task
from pippin.runtime.workers.link import Mailbox
from tests.api.fakes import MODEL, FakeRun, FakeService, Wire, application, failed

EMBED = json.dumps({"model": MODEL.id, "input": "hello"}).encode()
SPEAK = json.dumps({"model": MODEL.id, "input": "hello", "response_format": "pcm"}).encode()
SAY = json.dumps({"model": MODEL.id, "input": "hello", "stream_format": "sse"}).encode()


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/embeddings", EMBED), ("/audio/speech", SPEAK), ("/audio/speech", SAY)],
)
def test_a_client_that_hangs_up_cancels_its_run(path: str, body: bytes) -> None:
    async def main() -> None:
        service = Played([Accepted(1), Progress(1, 9)])
        wire = Wire(application(service), body, path)
        answer = asyncio.create_task(wire.run())
        await asyncio.wait_for(service.began.wait(), 5)
        await asyncio.sleep(0.05)
        assert not service.runs[0].closed
        wire.gone.set()
        await asyncio.wait_for(answer, 5)
        assert service.runs[0].closed

    asyncio.run(main())


class Played(FakeService):
    """Plays its events to tasks of every kind."""

    async def start(self, task: Task, *, model: str, id: str, account: str = "") -> FakeRun:
        accepted, *others = self.events
        assert isinstance(accepted, Accepted)
        run = FakeRun(id, task, accepted, Mailbox(0, lambda: None))
        for event in others:
            run.mailbox.put(event)
        self.runs.append(run)
        self.began.set()
        return run


def played(path: str, body: bytes, *events: Event) -> Wire:
    async def main() -> Wire:
        wire = Wire(application(Played([Accepted(1), *events])), body, path)
        await asyncio.wait_for(wire.run(), 5)
        return wire

    return asyncio.run(main())


def test_a_failure_before_the_first_sound_has_a_status_of_its_own() -> None:
    wire = played("/v1/audio/speech", SPEAK, failed("unsupported", "This model has no `speed`."))
    assert wire.sent[0]["status"] == 400
    assert "no `speed`" in wire.text


def test_a_failure_amid_the_sound_leaves_the_reply_without_an_end() -> None:
    async def main() -> Wire:
        service = Played([Accepted(1), SpeechChunk(b"abc")])
        wire = Wire(application(service), SPEAK, "/v1/audio/speech")
        answer = asyncio.create_task(wire.run())
        await wire.until("abc")
        service.runs[0].mailbox.put(failed("internal"))
        await asyncio.wait_for(answer, 5)
        return wire

    wire = asyncio.run(main())
    assert wire.sent[0]["status"] == 200
    assert wire.sent[-1]["more_body"]


def test_a_stream_of_events_says_how_it_failed() -> None:
    first = played("/v1/audio/speech", SAY, failed("unsupported", "No guidance."))
    assert first.sent[0]["status"] == 400

    async def main() -> Wire:
        service = Played([Accepted(1), SpeechChunk(b"abc")])
        wire = Wire(application(service), SAY, "/v1/audio/speech")
        answer = asyncio.create_task(wire.run())
        await wire.until("speech.audio.delta")
        service.runs[0].mailbox.put(failed("worker_died", "The model died."))
        await asyncio.wait_for(answer, 5)
        return wire

    wire = asyncio.run(main())
    assert "event: error" in wire.text
    assert "The model died." in wire.text
    assert not wire.sent[-1]["more_body"]
