"""A process of its own that asks for `/health` again and again, and tells a slow server from a busy machine.

Where more wants to run than there are cores, an answer is late because the server, or this process, stands in the
line of the system's scheduler. Linux counts that time for each thread, so it can be taken off (`Probe.own`): what is
left is the server's own doing. Elsewhere it counts as nothing.
"""

import contextlib
import socket
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

INTERVAL = 0.05
PATIENCE = 5.0  # seconds
LATE = 100.0  # milliseconds
REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Probe:
    """Times of the clock `time.monotonic`, and milliseconds."""

    began: float
    took: float
    answered: bool
    server_waited: float  # its threads, for a core
    prober_waited: float

    @property
    def ended(self) -> float:
        return self.began + self.took / 1000

    @property
    def own(self) -> float:
        """What the scheduler's line does not explain; at least this is the server's."""
        return max(0.0, self.took - self.server_waited - self.prober_waited)

    def overlaps(self, spans: Iterable[tuple[float, float]]) -> bool:
        return any(self.began <= end and self.ended >= start for start, end in spans)


def line(probe: Probe) -> str:
    waited = f"{probe.server_waited:.3f} {probe.prober_waited:.3f}"
    return f"{probe.began:.4f} {probe.took:.3f} {int(probe.answered)} {waited}"


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


def waited(process: str) -> float:
    """Milliseconds that the threads of a process have stood in the scheduler's line: one that holds the interpreter
    meanwhile keeps the event loop from it."""
    total = 0
    for thread in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):  # it has ended
            total += int(thread.read_text().split()[1])
    return total / 1e6


def ask(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            connection.sendall(REQUEST)
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def probe(port: int, process: str) -> Probe:
    """`process`: the server's id."""
    server, own = waited(process), waited("self")
    began = time.monotonic()
    answered = ask(port)
    took = (time.monotonic() - began) * 1000
    return Probe(began, took, answered, max(0.0, waited(process) - server), waited("self") - own)


def main() -> None:
    """Arguments: the port, a file that holds the server's process id, and seconds between two questions."""
    port, process, interval = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    while True:
        time.sleep(interval)
        print(line(probe(port, process.read_text() or "none")), flush=True)


if __name__ == "__main__":
    main()
