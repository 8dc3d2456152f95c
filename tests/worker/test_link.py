"""The worker's end of the link: a server that reads slowly, or not at all, or is gone."""

import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from pippin.core.events import Event, PartDelta
from pippin.core.link import Cancel, FrameBuffer, Order, Output, Report, Stats, frame
from pippin.core.models import EngineStats, ModelInfo, WorkerSpec
from pippin.worker import loop as module
from pippin.worker.loop import LinkLost, WorkerLink


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, WorkerLink]]:
    ours, theirs = socket.socketpair()
    yield ours, WorkerLink(theirs.fileno(), theirs.fileno())
    ours.close()
    theirs.close()


def read_reports(connection: socket.socket, seconds: float = 5.0) -> Iterator[Report]:
    connection.settimeout(seconds)
    buffer = FrameBuffer()
    while data := connection.recv(1 << 20):
        for payload in buffer.feed(data):
            yield msgspec.msgpack.decode(payload, type=Report)


def test_one_step_is_one_frame(ends: tuple[socket.socket, WorkerLink]) -> None:
    server, link = ends
    step: list[tuple[str, Event]] = [("a", PartDelta(0, 0, "x")), ("b", PartDelta(0, 0, "y"))]
    link.send_events(step)
    assert next(read_reports(server)) == Output(step)


def test_a_server_that_reads_nothing_holds_up_the_engine_only_at_a_bound(
    ends: tuple[socket.socket, WorkerLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_EVENTS", 4000)
    server, link = ends
    sent = 0

    def steps() -> None:
        nonlocal sent
        for number in range(10_000):
            link.send_events([("a", PartDelta(0, 0, "some text ", (), number + 1))])
            sent += 1

    engine = threading.Thread(target=steps, daemon=True)
    engine.start()
    time.sleep(0.5)
    stuck = sent
    time.sleep(0.1)
    assert 4000 <= stuck < 10_000
    assert sent == stuck  # the bound holds: the engine waits, and the memory does not grow
    text, frames = "", 0
    for report in read_reports(server):
        assert isinstance(report, Output)
        frames += 1
        for _, event in report.events:
            assert isinstance(event, PartDelta)
            text += event.text
        if len(text) == 10_000 * len("some text "):
            break
    engine.join(5)
    assert text == "some text " * 10_000
    assert frames < 9_000


def test_reports_keep_their_order_behind_waiting_events(ends: tuple[socket.socket, WorkerLink]) -> None:
    server, link = ends
    big = "x" * (1 << 20)

    def send() -> None:
        for _ in range(4):
            link.send_events([("a", PartDelta(0, 0, big))])
        link.send(Stats(EngineStats(steps=4)))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    length = 0
    for report in read_reports(server):
        if isinstance(report, Stats):
            break
        assert isinstance(report, Output)
        length += sum(len(event.text) for _, event in report.events if isinstance(event, PartDelta))
    assert length == 4 << 20
    sender.join(5)


def test_a_server_that_is_gone_is_told_to_the_sender(ends: tuple[socket.socket, WorkerLink]) -> None:
    server, link = ends
    server.close()
    with pytest.raises(LinkLost):
        for _ in range(100):
            link.send_events([("a", PartDelta(0, 0, "x"))])


def test_the_spec_is_read_and_the_orders_behind_it_stay(ends: tuple[socket.socket, WorkerLink]) -> None:
    server, link = ends
    encode = msgspec.msgpack.Encoder().encode
    spec = WorkerSpec(info=ModelInfo(id="m", kind="scripted"))
    server.sendall(frame(encode(spec)) + frame(encode(Cancel("r"))))
    server.shutdown(socket.SHUT_WR)
    assert link.receive_spec() == spec
    orders: list[Order] = []
    link.read_orders(orders.append, lambda: None)
    assert orders == [Cancel("r")]


@pytest.mark.parametrize("data", [b"\x00\x00\x00\x01\xc1", b"\xff\xff\xff\xff"])
def test_rubbish_from_the_server_ends_the_worker(ends: tuple[socket.socket, WorkerLink], data: bytes) -> None:
    server, link = ends
    server.sendall(data)
    lost: list[bool] = []
    link.read_orders(lambda order: None, lambda: lost.append(True))
    assert lost == [True]
