"""A process of its own that asks for `/health` again and again, and tells a slow server from a busy machine.

Where more wants to run than there are cores, an answer is late because the server, or this process, stands in the
line of the system's scheduler. Linux counts that time for each thread, so it can be taken off (`Probe.own`): what is
left is the server's own doing. Elsewhere it counts as nothing.

So that no more is taken off than the line explains, the threads are looked at every few milliseconds while an answer
is awaited. Where the event loop stands in the line, that is the machine's. Where it sleeps, it may wait for the lock of
the interpreter, held by a thread that stands in the line; that is believed for as long as the kernel says that it
sleeps for a lock (a futex), or where nobody saw for what it sleeps, because this process stood in the line too. A loop
that is stopped, or waits for a clock, a disk or a socket, has no such excuse, whatever else of the server is in the
line. This process' own place in the line counts where it asks, and where it finds an answer, which may have lain there.
"""

import contextlib
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

INTERVAL = 0.05
PATIENCE = 30.0  # seconds; no line of the scheduler is that long, so silence is never excused
LOOK = 0.01  # seconds between two looks at the threads
LATE = 100.0  # milliseconds
REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Probe:
    """Times of the clock `time.monotonic`, and milliseconds."""

    began: float
    took: float
    answered: bool
    waited: float  # of that, in the scheduler's line
    ran: float = 0.0  # of that, on a core: the event loop, for whomever

    @property
    def ended(self) -> float:
        return self.began + self.took / 1000

    @property
    def own(self) -> float:
        """What the scheduler's line does not explain; at least this is the server's."""
        return max(0.0, self.took - self.waited)

    def overlaps(self, spans: Iterable[tuple[float, float]]) -> bool:
        return any(self.began <= end and self.ended >= start for start, end in spans)


def written(probe: Probe) -> str:
    return f"{probe.began:.4f} {probe.took:.3f} {int(probe.answered)} {probe.waited:.3f} {probe.ran:.3f}"


def read_probes(path: Path) -> list[Probe]:
    """The last line may be half written."""
    found = [words for words in map(str.split, path.read_text().splitlines()) if len(words) == 5]
    return [Probe(float(a), float(b), c == "1", float(d), float(e)) for a, b, c, d, e in found]


def summary(probes: Sequence[Probe]) -> str:
    answers = [probe for probe in probes if probe.answered]
    if len(answers) < 2:
        return "no answers"
    took, own = [each.took for each in answers], [each.own for each in answers]
    return (
        f"{len(answers)} answers, {len(probes) - len(answers)} without; {spread(took)}; "
        f"without the time in the scheduler's line {spread(own)}"
    )


def spread(milliseconds: list[float]) -> str:
    cuts = statistics.quantiles(milliseconds, n=1000)
    over = sum(each > LATE for each in milliseconds)
    return (
        f"p50 {cuts[499]:.1f} ms, p99 {cuts[989]:.1f} ms, p99.9 {cuts[998]:.1f} ms, "
        f"longest {max(milliseconds):.1f} ms, {over} over {LATE:g} ms"
    )


@dataclass(frozen=True)
class Thread:
    """What a thread has done since it began, in milliseconds."""

    ran: float = 0.0
    waited: float = 0.0  # for a core


@dataclass(frozen=True)
class Look:
    """The server's threads and this process at one moment."""

    at: float
    loop: Thread  # the server's first
    waits_for_lock: bool  # the loop does, at this moment
    others: dict[str, float]  # what each other thread of the server has waited
    prober: float  # what this process has waited


def look(process: str) -> Look:
    """`process`: the server's id. One that is gone has done nothing."""
    others = {
        task.name: _thread(task).waited
        for task in Path(f"/proc/{process}/task").glob("*")
        if task.name != process
    }
    at = time.monotonic() * 1000
    loop, prober = _thread(Path(f"/proc/{process}/task/{process}")), _thread(Path("/proc/self")).waited
    return Look(at, loop, "futex" in _read(Path(f"/proc/{process}/task/{process}/wchan")), others, prober)


def _thread(folder: Path) -> Thread:
    """It may have ended, and only Linux tells."""
    words = _read(folder / "schedstat").split()
    return Thread(int(words[0]) / 1e6, int(words[1]) / 1e6) if len(words) > 1 else Thread()


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


class Line:
    """How long an answer was kept by the scheduler's line, added up from look to look.

    The kernel counts a wait when it has ended, so that spans are too short to be judged one by one.
    """

    def __init__(self, first: Look) -> None:
        self._first = self._last = first
        self._others = dict(first.others)  # the last that was known of each, also of those that have ended
        self._at_lock = 0.0  # for which the loop slept for a lock, in milliseconds
        self._prober = 0.0

    def add(self, now: Look, *, found: bool) -> None:
        """`found`: what was awaited had come."""
        if found:
            self._prober += now.prober - self._last.prober
        unseen = now.prober - self._last.prober > LOOK * 1000
        if self._last.waits_for_lock or now.waits_for_lock or unseen:
            loop = now.loop.ran + now.loop.waited - self._last.loop.ran - self._last.loop.waited
            self._at_lock += max(0.0, now.at - self._last.at - loop)
        self._others |= now.others
        self._last = now

    @property
    def ran(self) -> float:
        """Milliseconds of a core that the event loop had."""
        return self._last.loop.ran - self._first.loop.ran

    @property
    def ended(self) -> float:
        """When the last look was; what kept this process afterwards is nobody's delay."""
        return self._last.at

    @property
    def waited(self) -> float:
        """Milliseconds; never more than the event loop did not run."""
        first, last = self._first, self._last
        others = sum(self._others.values()) - sum(first.others.values())
        waited = last.loop.waited - first.loop.waited + min(others, self._at_lock) + self._prober
        return max(0.0, min(waited, last.at - first.at - self.ran))


def probe(port: int, process: str, patience: float = PATIENCE) -> Probe:
    """`process`: the server's id."""
    line = Line(look(process))
    began = line.ended / 1000
    answered = False

    def watch(found: bool) -> None:
        line.add(look(process), found=found)

    with contextlib.closing(socket.socket()) as connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", port))
        if _ready(connection, select.POLLOUT, began + patience, watch):
            connection.sendall(REQUEST)
            if _ready(connection, select.POLLIN, began + patience, watch):
                answered = connection.recv(64).startswith(b"HTTP/1.1 200")
    return Probe(began, line.ended - began * 1000, answered, line.waited, line.ran)


def _ready(connection: socket.socket, event: int, until: float, watch: Callable[[bool], None]) -> bool:
    """Whether a connection comes to an event in time; the threads are watched meanwhile."""
    waiting = select.poll()
    waiting.register(connection, event)
    while time.monotonic() < until:
        found = waiting.poll(LOOK * 1000)
        watch(bool(found))
        if found:
            return True
    return False


def main() -> None:
    """Arguments: the port, a file that holds the server's process id, and seconds between two questions."""
    port, process, interval = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    while True:
        time.sleep(interval)
        print(written(probe(port, process.read_text() or "none")), flush=True)


if __name__ == "__main__":
    main()
