"""The step loop of a worker: the one thread that touches the engine, between preparation and the socket.

Preparation renders templates, tokenizes and decodes media. Orders reach the loop through an inbox: jobs from the
preparation threads, everything else from the reader. Between two steps the loop takes all that has arrived; it sleeps
only when the engine is idle.

A send does not wait while the link has room: the frame is written on the thread that made it. When the API server is
slow, events are buffered and merged here, and a separate thread sends them as one frame once there is room. Beyond a
bound the sender waits, so that a server that does not read stalls the engine instead of exhausting memory.
"""

import ctypes
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Final

import msgspec

from pippin.core.decoding import from_message, message_decoder
from pippin.core.errors import ErrorReport, ServerError, trace_of
from pippin.core.events import Event, Failed, Rendered, Tokenized
from pippin.core.link import (
    AskStats,
    Cancel,
    ClearCache,
    FrameBuffer,
    FrameError,
    LoadWeights,
    Order,
    Output,
    Reconfigure,
    Report,
    Shutdown,
    Stats,
    Submit,
    frame,
    merged,
)
from pippin.core.models import WorkerSpec
from pippin.engines.base import (
    Emission,
    Engine,
    Job,
    NeedsWeightsError,
    NobodyWaitsError,
    Preparer,
    check_wanted,
    holding,
    still_wanted,
)
from pippin.engines.device import give_arrays_back

READ_SIZE: Final = 1 << 18  # bytes
WAITING_EVENTS: Final = 50_000  # events held for a slow server before senders wait
RECHECK: Final = 1.0  # seconds between checks of a link that has no room

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The request that this thread works on; its log lines carry the id."""


class LinkLost(Exception):
    """The API server is gone."""


class WorkerLink:
    """The link to the API server: reads orders from one descriptor, and writes frames of events and reports to another,
    or to the same."""

    def __init__(self, reading: int, writing: int) -> None:
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        self._reading = reading
        self._writing = writing
        self._frames = self._received()
        self._encode = msgspec.msgpack.Encoder().encode
        self._room = threading.Condition()
        self._unsent = memoryview(b"")  # the rest of a frame that was sent in part
        self._waiting: dict[str, list[Event]] = {}
        self._waiting_events = 0
        self._closed = False
        self._flusher: threading.Thread | None = None

    def receive_spec(self) -> WorkerSpec:
        """Read the spec, which is the first frame. Raises `LinkLost`."""
        payload = next(self._frames, None)
        if payload is None:
            raise LinkLost
        return from_message(payload, WorkerSpec)

    def read_orders(self, handle: Callable[[Order], None], lost: Callable[[], None]) -> None:
        """Hand every order to `handle`; the body of the reader thread. Calls `lost` at the end."""
        decoder = message_decoder(Order)
        try:
            for payload in self._frames:
                handle(decoder.decode(payload))
        except (FrameError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.error("The API server sent what is no order: %s The worker ends.", error)
        finally:
            lost()

    def _received(self) -> Iterator[bytes]:
        buffer = FrameBuffer()
        with suppress(OSError):
            while select.select([self._reading], [], []) and (data := os.read(self._reading, READ_SIZE)):
                yield from buffer.feed(data)

    def send_events(self, emissions: list[Emission]) -> None:
        """Send one step's events, or queue them behind those already waiting. Raises `LinkLost`."""
        if not emissions:
            return
        with self._room:
            self._room.wait_for(lambda: self._closed or self._waiting_events < WAITING_EVENTS)
            if self._closed:
                raise LinkLost
            if not self._congested:
                self._send_now(frame(self._encode(Output(emissions))))
                return
            for request, event in emissions:
                self._waiting.setdefault(request, []).append(event)
            self._waiting_events += len(emissions)

    def send(self, report: Report) -> None:
        """Send one report, after everything sent before. Raises `LinkLost`."""
        with self._room:
            self._room.wait_for(lambda: self._closed or not self._congested)
            if self._closed:
                raise LinkLost
            self._send_now(frame(self._encode(report)))

    def drain(self, seconds: float) -> None:
        """Wait at most `seconds` until everything is sent."""
        with self._room:
            self._room.wait_for(lambda: self._closed or not self._congested, timeout=seconds)

    @property
    def _congested(self) -> bool:
        return bool(self._unsent) or bool(self._waiting)

    def _send_now(self, data: bytes) -> None:
        """Write as much as there is room for; the flusher sends the rest. The caller holds the lock."""
        try:
            sent = os.write(self._writing, data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._closed = True
            self._room.notify_all()
            raise LinkLost from error
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            if self._flusher is None:
                self._flusher = threading.Thread(target=self._flush_loop, name="flush", daemon=True)
                self._flusher.start()
            self._room.notify_all()

    def _flush_loop(self) -> None:
        with suppress(OSError, LinkLost):  # the server is gone
            while not self._closed:
                with self._room:
                    self._room.wait_for(lambda: self._closed or self._congested)
                select.select([], [self._writing], [], RECHECK)
                with self._room:
                    self._flush_some()

    def _flush_some(self) -> None:
        if not self._unsent and self._waiting:
            held = [(request, event) for request, events in self._waiting.items() for event in merged(events)]
            self._waiting = {}
            self._waiting_events = 0
            self._send_now(frame(self._encode(Output(held))))
        elif self._unsent:
            rest = self._unsent
            self._unsent = memoryview(b"")
            self._send_now(bytes(rest))
        if not self._congested:
            self._room.notify_all()


log = logging.getLogger(__name__)

# A request that arrives just after an idle engine started waits for a whole step instead of joining the first one. So
# the first request waits for this fraction of a step, and on while others arrive, up to four times as long. Of 16 that
# arrive at once all start together, and get their first token in two thirds of the time (measured).
GATHERED: Final = 0.05  # of a step
MOST_GATHERED: Final = 0.01  # seconds

RESTED: Final = 5.0
"""Seconds without a step after which the allocator's free memory is returned to the system: many sequences leave behind
hundreds of MB that others can use. Not sooner, because allocating it again costs 2 ms per MB. What streams would stand
still for later is made then, too."""

PREPARATION_THREADS: Final = 2
LONG_TEXT: Final = 256 << 10
"""Characters from which a text is tokenized on a separate thread: 60,000 tokens, which take half a second."""
MOST_TOKENS: Final = 1_000_000
"""In one answer of the tokenizer: the API server decodes it in one go, which blocks everybody else."""


Arrival = Job | Cancel | ClearCache | Reconfigure | AskStats | Shutdown
Answer = Job | tuple[Event, ...]
Done = Callable[[str, Answer], None]
Wanted = Callable[[str], bool]


class Preparation:
    """Turns orders into jobs, or into complete answers where no weights are needed.

    Orders that arrive before the tokenizer is loaded wait for it. Those that need the loaded model wait for the
    weights, and take no thread meanwhile.
    """

    def __init__(self) -> None:
        self._ready: Future[tuple[Preparer, Done, Wanted]] = Future()
        self._threads = ThreadPoolExecutor(PREPARATION_THREADS, thread_name_prefix="prepare")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="prepare-long")
        self._weights: Future[None] = Future()

    def begin(self, preparer: Preparer, done: Done, wanted: Wanted = lambda _: True) -> None:
        """Start preparing queued and future orders. `done` receives each answer, on a thread of this pool.

        `wanted` says whether somebody still waits for the answer to an order.
        """
        self._ready.set_result((preparer, done, wanted))

    def weights_loaded(self) -> None:
        """Prepare the orders that have waited for the weights."""
        self._weights.set_result(None)

    def submit(self, order: Submit) -> None:
        if order.task.text_length() < LONG_TEXT and not order.task.prepares_slowly():
            self._threads.submit(self._prepare, order)
        else:
            # Without delaying the others; then its memory is returned.
            self._long.submit(self._prepare, order)
            self._long.submit(give_memory_back)

    def rest(self) -> None:
        """Make ahead what a later request would hold up others for, and return memory."""
        preparer, _, _ = self._ready.result()
        if hasattr(preparer, "make_ahead"):
            self._long.submit(preparer.make_ahead)
        self._long.submit(give_memory_back)

    def _prepare(self, order: Submit) -> None:
        preparer, done, wanted = self._ready.result()
        with holding(request_id, order.id), holding(still_wanted, lambda: wanted(order.id)):
            try:
                answer = _prepared(preparer, order)
            except NeedsWeightsError:
                self._weights.add_done_callback(lambda _: self.submit(order))
                return
        with suppress(LinkLost):
            done(order.id, answer)


def _prepared(preparer: Preparer, order: Submit) -> Answer:
    try:
        check_wanted()
        answer = preparer.prepare(order.id, order.task)
        for event in answer if isinstance(answer, tuple) else ():
            if isinstance(event, Tokenized | Rendered) and len(event.tokens) > MOST_TOKENS:
                raise ServerError(
                    "too_large",
                    f"The text has {len(event.tokens)} tokens; send at most {MOST_TOKENS} at a time.",
                )
        return answer
    except ServerError as error:
        return (Failed(error.report),)
    except NobodyWaitsError:
        return ()
    except NeedsWeightsError:
        raise
    except MemoryError:
        log.warning("Preparing a request took more memory than this worker may have.")
        message = "The request takes more memory than its model may have. Send a smaller one."
        return (Failed(ErrorReport(kind="too_large", message=message)),)
    except Exception as error:
        log.error("Preparing the request failed.\n%s", trace_of(error))
        log.debug("Preparing the request failed.", exc_info=True)
        message = "The request could not be prepared because of a fault in the server; its log has more."
        return (Failed(ErrorReport(kind="internal", message=message)),)


def give_memory_back() -> None:
    """Return memory that the allocator keeps after a large piece of work to the system (glibc's `malloc_trim`)."""
    with suppress(AttributeError):  # other C libraries have none
        ctypes.CDLL(None).malloc_trim(0)


class StepLoop:
    """Steps the engine, and hands it orders between two steps."""

    def __init__(self, link: WorkerLink, preparation: Preparation) -> None:
        self._link = link
        self._preparation = preparation
        self._arrived = threading.Condition()
        self._inbox: deque[Arrival] = deque()
        self._in_preparation: dict[str, bool] = {}  # id: whether it was cancelled meanwhile
        self._step_seconds = 0.0  # moving average
        self._leave_at: float | None = None
        self._tidy_at: float | None = None  # when memory is returned, if nothing arrives before
        self._admission: Future[LoadWeights | Shutdown] = Future()

    def receive(self, order: Order) -> None:
        """Take an order, on the reader's thread."""
        if isinstance(order, LoadWeights | Shutdown) and not self._admission.done():
            self._admission.set_result(order)
        with self._arrived:
            match order:
                case Submit(id):
                    self._in_preparation[id] = False
                    self._preparation.submit(order)
                case Cancel(id) if id in self._in_preparation:
                    self._in_preparation[id] = True
                case LoadWeights():
                    pass
                case _:
                    self._put(order)

    def admission(self) -> LoadWeights | None:
        """Wait until the weights may be loaded; None if the worker is to exit instead."""
        order = self._admission.result()
        return order if isinstance(order, LoadWeights) else None

    def wants(self, id: str) -> bool:
        """Whether an order is in preparation and not cancelled; callable from any thread."""
        return not self._in_preparation.get(id, True)

    def prepared(self, id: str, answer: Answer) -> None:
        """Take the result of a preparation, on its thread. Raises `LinkLost`."""
        with self._arrived:
            cancelled = self._in_preparation.pop(id, True)
            if not cancelled and not isinstance(answer, tuple):
                self._put(answer)
            self._arrived.notify()
        if not cancelled and isinstance(answer, tuple):
            self._link.send_events([(id, event) for event in answer])

    def run(self, engine: Engine) -> None:
        """Serve until a `Shutdown` is carried out, then close the engine, whose weights are loaded.

        Raises what a step raises. The engine is not closed then, because its state cannot be trusted.
        """
        self._preparation.weights_loaded()
        self._tidy_at = time.monotonic() + RESTED
        while not self._time_to_leave(engine):
            for arrival in self._take(wait=not engine.busy):
                self._handle(engine, arrival)
            if engine.busy:
                started = time.monotonic()
                emissions = engine.step()
                ended = time.monotonic()
                self._step_seconds += (ended - started - self._step_seconds) / 8
                self._tidy_at = ended + RESTED
                self._link.send_events(emissions)
            elif self._tidy_at is not None and time.monotonic() >= self._tidy_at:
                self._tidy_at = None
                give_arrays_back()
                self._preparation.rest()
        engine.close()

    def _put(self, arrival: Arrival) -> None:
        self._inbox.append(arrival)
        self._arrived.notify()

    def _take(self, *, wait: bool) -> list[Arrival]:
        with self._arrived:
            if wait and not self._inbox:
                moments = [each for each in (self._leave_at, self._tidy_at) if each is not None]
                self._arrived.wait(max(0.0, min(moments) - time.monotonic()) if moments else None)
                self._gather(min(GATHERED * self._step_seconds, MOST_GATHERED))
            arrivals = list(self._inbox)
            self._inbox.clear()
        return arrivals

    def _gather(self, quiet: float) -> None:
        """Wait until no order has arrived for `quiet` seconds and no prompt is in preparation, at most `4 * quiet`
        seconds."""
        end = time.monotonic() + 4 * quiet
        while (left := min(quiet, end - time.monotonic())) > 0:
            came = len(self._inbox)
            self._arrived.wait(timeout=left)
            if len(self._inbox) == came and not self._in_preparation:
                return

    def _time_to_leave(self, engine: Engine) -> bool:
        if self._leave_at is None:
            return False
        with self._arrived:
            idle = not engine.busy and not self._inbox and not self._in_preparation
        return idle or time.monotonic() >= self._leave_at

    def _handle(self, engine: Engine, arrival: Arrival) -> None:
        match arrival:
            case Cancel(id):
                engine.cancel(id)
            case ClearCache(prefixes_only, disk):
                engine.clear_cache(prefixes_only=prefixes_only, disk=disk)
            case Reconfigure(options):
                for name, value in options.items():  # one by one, so that a refused option holds up no other
                    try:
                        engine.reconfigure({name: value})
                    except ServerError as error:
                        log.info("Not changed while running: %s", error.report.message)
            case AskStats():
                self._link.send(Stats(engine.stats()))
            case Shutdown(deadline):
                self._leave_at = time.monotonic() + deadline
            case job:
                with holding(request_id, job.id):
                    try:
                        engine.submit(job)
                    except ServerError as error:
                        self._link.send_events([(job.id, Failed(error.report))])
                    else:
                        self._link.send_events([(job.id, job.accepted)])
