"""The step loop between orders and an engine that a test looks into."""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pytest

from pippin.core.conversation import Inline, Message, Video
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Counted, Event, Failed, Finished, Tokenized
from pippin.core.link import (
    AskStats,
    Cancel,
    FrameBuffer,
    LoadWeights,
    Output,
    Reconfigure,
    Report,
    Shutdown,
    Stats,
    Submit,
)
from pippin.core.models import EngineStats, ModelInfo
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate, Task, Tokenize
from pippin.engines.base import Emission, NeedsWeightsError, check_wanted
from pippin.worker import loop
from pippin.worker.loop import Preparation, StepLoop, WorkerLink


@dataclass
class ProbeJob:
    id: str
    accepted: Accepted = field(default_factory=lambda: Accepted(1))


@dataclass
class Probe:
    """Preparer and engine in one. What `prepare` does depends on the text."""

    info: ModelInfo = field(default_factory=lambda: ModelInfo(id="m", kind="scripted"))
    gate: threading.Event = field(default_factory=threading.Event)
    log: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    made_ahead: int = 0

    def make_ahead(self) -> None:
        self.made_ahead += 1

    def prepare(self, id: str, task: Task) -> ProbeJob | tuple[Event, ...]:
        assert isinstance(task, Tokenize)
        match task.text:
            case "count":
                return (Counted(3),)
            case "tokens":
                return (Tokenized((1,) * 9),)
            case "refuse":
                raise ServerError("invalid_request", "No.", "text")
            case "break":
                raise RuntimeError("a bug")
            case "wait":
                self.gate.wait(5)
        return ProbeJob(id)

    def submit(self, job: ProbeJob) -> None:
        self.threads.add(threading.get_ident())
        if job.id == "never":
            raise ServerError("too_large", "Never.")
        self.log.append(f"submit {job.id}")
        self.running.append(job.id)

    def cancel(self, id: str) -> None:
        self.threads.add(threading.get_ident())
        self.log.append(f"cancel {id}")
        self.running = [each for each in self.running if each != id]

    @property
    def busy(self) -> bool:
        return bool(self.running)

    def step(self) -> list[Emission]:
        self.threads.add(threading.get_ident())
        if "explode" in self.running:
            raise RuntimeError("out of memory")
        done = [each for each in self.running if each != "endless"]
        self.running = [each for each in self.running if each == "endless"]
        return [(each, Finished(0, "stop")) for each in done]

    def close(self) -> None:
        self.log.append("close")

    def stats(self) -> EngineStats:
        return EngineStats(steps=5)

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        self.log.append("clear")

    def reconfigure(self, options: dict[str, Any]) -> None:
        if "queue_size" not in options:
            raise ServerError("unsupported", "Not now.")
        self.log.append(f"reconfigure {options}")


class Bench:
    def __init__(self) -> None:
        self.server, self.worker = socket.socketpair()
        self.server.settimeout(5)
        self.link = WorkerLink(self.worker.fileno(), self.worker.fileno())
        self.probe = Probe()
        preparation = Preparation()
        self.loop = StepLoop(self.link, preparation)
        preparation.begin(self.probe, self.loop.prepared)
        self.failure: list[BaseException] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self._reports = self._read()

    def _run(self) -> None:
        try:
            self.loop.run(self.probe)
        except RuntimeError as error:
            self.failure.append(error)

    def _read(self) -> Iterator[Report]:
        buffer = FrameBuffer()
        while data := self.server.recv(1 << 16):
            for payload in buffer.feed(data):
                yield msgspec.msgpack.decode(payload, type=Report)

    def submit(self, id: str, text: str = "go") -> None:
        self.loop.receive(Submit(id, Tokenize(text)))

    def events(self, until: Callable[[Event], bool]) -> list[tuple[str, Event]]:
        found: list[tuple[str, Event]] = []
        for report in self._reports:
            assert isinstance(report, Output)
            found += report.events
            if any(until(event) for _, event in report.events):
                return found
        raise AssertionError(found)

    def next(self) -> Report:
        return next(self._reports)

    def leave(self, deadline: float = 5.0) -> None:
        self.loop.receive(Shutdown(deadline))
        self.thread.join(5)
        assert not self.thread.is_alive()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    if bench.thread.is_alive():
        bench.leave(0.0)
    bench.server.close()
    bench.worker.close()


def test_a_request_is_accepted_and_finished(bench: Bench) -> None:
    bench.submit("a")
    events = bench.events(lambda event: isinstance(event, Finished))
    assert events == [("a", Accepted(1)), ("a", Finished(0, "stop"))]


def test_what_needs_no_weights_is_answered_by_preparation(bench: Bench) -> None:
    bench.submit("a", "count")
    assert bench.events(lambda event: True) == [("a", Counted(3))]
    assert bench.probe.log == []


@pytest.mark.parametrize(
    ("id", "text", "kind"),
    [
        ("a", "refuse", "invalid_request"),
        ("a", "tokens", "too_large"),
        ("never", "go", "too_large"),
        ("a", "break", "internal"),
    ],
)
def test_refusals_and_bugs_in_preparation_fail_that_request_alone(
    bench: Bench, id: str, text: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pippin.worker.loop.MOST_TOKENS", 8)
    bench.submit(id, text)
    [(_, event)] = bench.events(lambda event: True)
    assert isinstance(event, Failed)
    assert event.error.kind == kind
    bench.submit("b")
    assert bench.events(lambda event: isinstance(event, Finished))[-1] == ("b", Finished(0, "stop"))


def test_a_request_cancelled_while_it_is_prepared_never_reaches_the_engine(bench: Bench) -> None:
    bench.submit("a", "wait")
    bench.loop.receive(Cancel("a"))
    bench.probe.gate.set()
    bench.submit("b")
    events = bench.events(lambda event: isinstance(event, Finished))
    assert [request for request, _ in events] == ["b", "b"]
    assert "submit a" not in bench.probe.log


def test_a_running_request_is_cancelled_between_two_steps(bench: Bench) -> None:
    bench.submit("endless")
    bench.events(lambda event: isinstance(event, Accepted))
    bench.loop.receive(Cancel("endless"))
    bench.leave()
    assert bench.probe.log == ["submit endless", "cancel endless", "close"]


def finished_together(bench: Bench) -> list[str]:
    """The requests that the first step finished."""
    for report in iter(bench.next, None):
        assert isinstance(report, Output)
        if ends := [request for request, event in report.events if isinstance(event, Finished)]:
            return ends
    raise AssertionError


@pytest.fixture
def patient(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Its steps have taken so long that it waits for 0.3 seconds, and for 1.2 at most."""
    monkeypatch.setattr(loop, "MOST_GATHERED", 0.3)
    bench.loop._step_seconds = 60.0
    return bench


def test_who_comes_just_after_the_first_is_in_its_step(patient: Bench) -> None:
    patient.submit("a")
    time.sleep(0.05)
    patient.submit("b")
    assert finished_together(patient) == ["a", "b"]


def test_the_first_waits_for_what_is_being_prepared(patient: Bench) -> None:
    patient.submit("b", "wait")
    patient.submit("a")
    time.sleep(0.5)
    patient.probe.gate.set()
    assert sorted(finished_together(patient)) == ["a", "b"]


def test_the_first_does_not_wait_long(patient: Bench) -> None:
    patient.submit("b", "wait")
    patient.submit("a")
    assert finished_together(patient) == ["a"]
    patient.probe.gate.set()


def test_where_steps_are_short_nobody_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "MOST_GATHERED", 1.0)
    started = time.monotonic()
    for number in range(20):
        bench.submit(f"r{number}")
        assert finished_together(bench) == [f"r{number}"]
    assert time.monotonic() - started < 10


def test_at_rest_free_memory_is_given_back_once_and_things_are_made_ahead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, arrays = threading.Semaphore(0), threading.Semaphore(0)
    monkeypatch.setattr(loop, "give_memory_back", given.release)
    monkeypatch.setattr(loop, "give_arrays_back", arrays.release)
    monkeypatch.setattr(loop, "RESTED", 0.1)
    assert not given.acquire(timeout=0.3), "nothing was computed yet"
    for name in ("a", "b"):
        bench.submit(name)
        assert finished_together(bench) == [name]
        assert given.acquire(timeout=5)
        assert arrays.acquire(blocking=False), "freed buffers of MLX"
        assert not given.acquire(timeout=0.3)
    assert bench.probe.made_ahead == 2


def test_who_works_keeps_its_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    given = threading.Semaphore(0)
    monkeypatch.setattr(loop, "give_memory_back", given.release)
    monkeypatch.setattr(loop, "RESTED", 0.0)
    bench.submit("endless")
    bench.events(lambda event: isinstance(event, Accepted))
    assert not given.acquire(timeout=0.3)
    assert not bench.probe.made_ahead
    bench.loop.receive(Cancel("endless"))
    assert given.acquire(timeout=5)


def test_the_engine_is_touched_by_one_thread_alone(bench: Bench) -> None:
    for number in range(20):
        bench.submit(f"r{number}")
    bench.loop.receive(Cancel("r1"))
    bench.leave()
    assert len(bench.probe.threads) == 1


def test_a_failing_step_ends_the_loop_and_leaves_the_engine_alone(bench: Bench) -> None:
    bench.submit("explode")
    bench.thread.join(5)
    assert [str(error) for error in bench.failure] == ["out of memory"]
    assert bench.probe.log == ["submit explode"]


def test_shutdown_waits_for_what_runs_and_no_longer_than_its_deadline(bench: Bench) -> None:
    bench.submit("endless")
    bench.submit("a")
    bench.events(lambda event: isinstance(event, Finished))
    bench.leave(0.3)
    assert bench.probe.log[-1] == "close"


def test_statistics_are_answered_and_unchangeable_options_survived(bench: Bench) -> None:
    bench.loop.receive(Reconfigure({"dtype": "float16", "queue_size": 3, "seed": 1}))
    bench.loop.receive(AskStats())
    assert bench.next() == Stats(EngineStats(steps=5))
    assert bench.probe.log == ["reconfigure {'queue_size': 3}"]


def test_weights_wait_for_their_order_and_give_way_to_the_end(bench: Bench) -> None:
    answers: list[LoadWeights | None] = []
    waiting = threading.Thread(target=lambda: answers.append(bench.loop.admission()))
    waiting.start()
    bench.loop.receive(Reconfigure({}))
    assert waiting.is_alive()
    bench.loop.receive(LoadWeights(5))
    waiting.join(5)
    assert answers == [LoadWeights(5)]
    other = StepLoop(bench.link, Preparation())
    other.receive(Shutdown())
    assert other.admission() is None


FILM: Final = Generate(
    GenerationRequest(model="m", messages=(Message("user", (Video(Inline(b"x", "video/mp4")),)),))
)


@pytest.mark.parametrize("slow", [Tokenize("x" * loop.LONG_TEXT), FILM], ids=["text", "video"])
def test_long_texts_and_videos_hold_up_nobody(monkeypatch: pytest.MonkeyPatch, slow: Task) -> None:
    gate, answered, given_back = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(loop, "give_memory_back", given_back.set)

    class Slow:
        info = ModelInfo(id="m", kind="scripted")

        def prepare(self, id: str, task: Task) -> tuple[Event, ...]:
            if id != "short":
                assert gate.wait(10)
            return (Counted(1),)

    def done(id: str, answer: object) -> None:
        if id == "short":
            answered.set()

    preparation = Preparation()
    preparation.begin(Slow(), done)
    for number in range(4):
        preparation.submit(Submit(f"long {number}", slow))
    preparation.submit(Submit("short", Tokenize("x")))
    assert answered.wait(5)
    assert not given_back.is_set()
    gate.set()
    assert given_back.wait(5)


def test_orders_that_need_the_weights_wait_for_them_and_hold_up_no_others() -> None:
    answered, weights = queue.SimpleQueue[str](), threading.Event()

    class Late:
        info = ModelInfo(id="m", kind="scripted")

        def prepare(self, id: str, task: Task) -> tuple[Event, ...]:
            if id.startswith("late") and not weights.is_set():
                raise NeedsWeightsError
            return (Counted(1),)

    preparation = Preparation()
    preparation.begin(Late(), lambda name, _: answered.put(name))
    for name in ("late 0", "late 1", "late 2", "early"):
        preparation.submit(Submit(name, Tokenize("x")))
    assert answered.get(timeout=5) == "early"
    assert answered.empty()
    weights.set()
    preparation.weights_loaded()
    assert {answered.get(timeout=5) for _ in range(3)} == {"late 0", "late 1", "late 2"}


def test_preparation_ends_when_its_request_is_cancelled(bench: Bench) -> None:
    began, ended, tried = threading.Event(), threading.Event(), []

    class Endless:
        info = ModelInfo(id="m", kind="scripted")

        def prepare(self, id: str, task: Task) -> tuple[Event, ...]:
            tried.append(id)
            began.set()
            try:
                while True:
                    check_wanted()
                    time.sleep(0.001)
            finally:
                ended.set()

    preparation = Preparation()
    steps = StepLoop(bench.link, preparation)
    for name in ("first", "second"):
        steps.receive(Submit(name, FILM))
    preparation.begin(Endless(), steps.prepared, steps.wants)
    assert began.wait(5)
    steps.receive(Cancel("second"))
    assert not ended.wait(0.05)
    steps.receive(Cancel("first"))
    assert ended.wait(5)
    steps.receive(Submit("last", FILM))
    steps.receive(Cancel("last"))
    assert "second" not in tried
