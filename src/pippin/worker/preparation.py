"""Preparation beside the step loop: templates, tokenizing and media, on threads of their own."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Event, Failed, Rendered, Tokenized
from pippin.core.link import Submit
from pippin.core.traces import trace_of
from pippin.engines.base import Job, Preparer
from pippin.worker.link import LinkLost
from pippin.worker.logs import request_log

log = logging.getLogger(__name__)

THREADS: Final = 2
MOST_TOKENS: Final = 1_000_000
"""In one answer of the tokenizer: the API server reads it in one go, while nobody else is answered."""

Answer = Job | tuple[Event, ...]
Done = Callable[[str, Answer], None]


class Preparation:
    """Orders that come before the tokenizer is there wait for it."""

    def __init__(self) -> None:
        self._ready: Future[tuple[Preparer, Done]] = Future()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prepare")

    def begin(self, preparer: Preparer, done: Done) -> None:
        """Start to prepare what has come and what comes; `done` gets each answer, on a thread from here."""
        self._ready.set_result((preparer, done))

    def submit(self, order: Submit) -> None:
        self._threads.submit(self._prepare, order)

    def _prepare(self, order: Submit) -> None:
        preparer, done = self._ready.result()
        with request_log(order.id):
            answer = _prepared(preparer, order)
        try:
            done(order.id, answer)
        except LinkLost:
            return


def _prepared(preparer: Preparer, order: Submit) -> Answer:
    try:
        answer = preparer.prepare(order.id, order.task)
        return _bounded(answer) if isinstance(answer, tuple) else answer
    except ServerError as error:
        return (Failed(error.report),)
    except Exception as error:
        log.error("Preparing the request failed.\n%s", trace_of(error))
        log.debug("Preparing the request failed.", exc_info=True)
        message = "The request could not be prepared because of a fault in the server; its log has more."
        return (Failed(ErrorReport(kind="internal", message=message)),)


def _bounded(answer: tuple[Event, ...]) -> tuple[Event, ...]:
    """Raises `ServerError`."""
    for event in answer:
        if isinstance(event, Tokenized | Rendered) and len(event.tokens) > MOST_TOKENS:
            raise ServerError(
                "too_large", f"The text has {len(event.tokens)} tokens; send at most {MOST_TOKENS} at a time."
            )
    return answer
