"""The sockets between ranks: who gets in, what is heard, and how a loss is noticed."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import msgspec
import pytest

from pippin.core.models import RankSpec
from pippin.runtime.ranks.places import free_ports
from pippin.worker import ranks
from pippin.worker.ranks import GroupLink, NotMet, meet


def spec(rank: int, size: int, port: int, secret: str = "of the group") -> RankSpec:
    return RankSpec(rank=rank, size=size, control=f"127.0.0.1:{port}", secret=secret)


class Meeting:
    """Ranks that meet on threads of this process."""

    def __init__(self, *specs: RankSpec) -> None:
        self.links: dict[int, GroupLink] = {}
        self.errors: dict[int, NotMet] = {}
        self.losses: list[tuple[int, str]] = []
        threads = [threading.Thread(target=self._meet, args=(each,)) for each in specs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(self, *_: object) -> None:
        for link in self.links.values():
            link.close()
        until(lambda: len({rank for rank, _ in self.losses}) == len(self.links))

    def _meet(self, own: RankSpec) -> None:
        try:
            self.links[own.rank] = meet(own, lambda sentence: self.losses.append((own.rank, sentence)))
        except NotMet as error:
            self.errors[own.rank] = error


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_rank_hears_rank_0_and_rank_0_hears_each() -> None:
    [port] = free_ports("127.0.0.1", 1)
    with Meeting(*(spec(rank, 3, port) for rank in range(3))) as met:
        met.links[0].tell(b"step")
        assert [met.links[rank].hear() for rank in (1, 2)] == [[b"step"], [b"step"]]
        met.links[2].tell(b"two")
        met.links[1].tell(b"one")
        assert met.links[0].hear() == [b"one", b"two"]


def test_a_rank_with_another_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "MEET_WITHIN", 1.0)
    [port] = free_ports("127.0.0.1", 1)
    met = Meeting(spec(0, 2, port), spec(1, 2, port, secret="of somebody else"))
    assert "Rank 1 did not connect" in str(met.errors[0])
    assert "Rank 1 cannot use" in str(met.errors[1])


def test_a_stranger_does_not_keep_the_ranks_apart() -> None:
    [port] = free_ports("127.0.0.1", 1)

    def knock() -> None:
        for _ in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(64))
                    return
            except OSError:
                time.sleep(0.02)

    knocking = threading.Thread(target=knock)
    knocking.start()
    with Meeting(spec(0, 2, port), spec(1, 2, port)) as met:
        knocking.join()
        met.links[0].tell(b"x")
        assert met.links[1].hear() == [b"x"]


def test_strangers_who_say_nothing_keep_nobody_waiting() -> None:
    [port] = free_ports("127.0.0.1", 1)
    silent: list[socket.socket] = []

    def knock() -> None:
        while len(silent) < 3:
            with contextlib.suppress(OSError):
                silent.append(socket.create_connection(("127.0.0.1", port), 1))

    knocking = threading.Thread(target=knock)
    leading = threading.Thread(target=lambda: links.append(meet(spec(0, 2, port), losses.append)))
    links: list[GroupLink] = []
    losses: list[str] = []
    leading.start()
    knocking.start()
    knocking.join()  # they are there before the rank is
    began = time.monotonic()
    link = meet(spec(1, 2, port), losses.append)
    leading.join()
    assert time.monotonic() - began < ranks.GREET_WITHIN / 2
    for each in silent:
        each.close()
    for each in (link, *links):
        each.close()
    until(lambda: len(losses) >= 2)
    until(lambda: not any(each.name == "greet" for each in threading.enumerate()))


def test_a_rank_that_ends_is_missed_at_once() -> None:
    [port] = free_ports("127.0.0.1", 1)
    with Meeting(spec(0, 2, port), spec(1, 2, port)) as met:
        met.links[1].close()
        until(lambda: (0, "Rank 1 is gone.") in met.losses)


def test_a_rank_that_says_nothing_is_missed_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "SILENT", 0.3)
    monkeypatch.setattr(ranks, "BEAT", 0.05)
    [port] = free_ports("127.0.0.1", 1)
    found: list[str] = []
    # A rank 1 that proves itself and then stops, as a process that is suspended does.
    silent = threading.Thread(
        target=lambda: held.append(ranks._connect(("127.0.0.1", port), spec(1, 2, port), 1e9))
    )
    held: list[socket.socket] = []
    silent.start()
    link = meet(spec(0, 2, port), found.append)
    silent.join()
    until(lambda: found)
    assert found[0] == "Rank 1 has been silent for 0.3 seconds."
    held[0].close()
    until(lambda: "Rank 1 is gone." in found)
    link.close()


def test_a_quiet_rank_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "SILENT", 1.0)
    monkeypatch.setattr(ranks, "BEAT", 0.05)
    [port] = free_ports("127.0.0.1", 1)
    with Meeting(spec(0, 2, port), spec(1, 2, port)) as met:
        time.sleep(1.5)
        assert met.losses == []


def test_a_place_among_ranks_crosses_the_socket() -> None:
    own = spec(1, 3, 80)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(own), type=RankSpec) == own
