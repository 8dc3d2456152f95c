"""Preparation beside the step loop: templates, tokenizing and media, on threads of their own."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Event, Failed
from pippin.core.link import Submit
from pippin.engines.base import Job, Preparer
from pippin.worker.link import LinkLost
from pippin.worker.logs import request_log

log = logging.getLogger(__name__)

THREADS: Final = 2

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
        return preparer.prepare(order.id, order.task)
    except ServerError as error:
        return (Failed(error.report),)
    except Exception:
        log.exception("Preparing the request failed.")
        message = "The request could not be prepared because of a fault in the server; its log has more."
        return (Failed(ErrorReport(kind="internal", message=message)),)
