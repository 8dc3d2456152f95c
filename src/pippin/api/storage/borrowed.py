"""The first process's store of responses, as other processes use it, and the answers to their questions."""

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from pippin.api.storage.response_store import Kind, ResponseStore
from pippin.service.lending.messages import Keep, Recall, Told
from pippin.service.lending.questions import Questions


class BorrowedStore:
    """The first process's store. Its methods block until that process answers: call them only on a thread."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._loop = asyncio.get_running_loop()

    def put(
        self,
        owner: str,
        id: str,
        kind: Kind,
        body: bytes,
        items: Iterable[str],
        replaces: bytes | None = None,
    ) -> bool:
        listed = list(items)
        return self._ask(lambda serial: Keep(serial, owner, id, kind, body, listed, replaces)).done

    def get(self, owner: str, id: str, kind: Kind) -> bytes | None:
        return self._ask(lambda serial: Recall(serial, "get", owner, id, kind)).body

    def begin(self, owner: str, id: str, kind: Kind, size: int) -> bytes | None:
        return self._ask(lambda serial: Recall(serial, "begin", owner, id, kind, size)).body

    def holder_of(self, owner: str, item: str) -> tuple[str, Kind] | None:
        return self._ask(lambda serial: Recall(serial, "holder_of", owner, item)).holder

    def delete(self, owner: str, id: str, kind: Kind) -> bool:
        return self._ask(lambda serial: Recall(serial, "delete", owner, id, kind)).done

    def _ask(self, make: Callable[[int], msgspec.Struct]) -> Told:
        told: Told = asyncio.run_coroutine_threadsafe(self._questions.ask(make), self._loop).result()
        return told


def told(store: ResponseStore, question: Keep | Recall) -> Told:
    """The answer of a store to a question of another process."""
    match question:
        case Keep(serial, owner, id, kind, body, items, replaces):
            return Told(serial, done=store.put(owner, id, kind, body, items, replaces))
        case Recall(serial, "get", owner, id, kind):
            return Told(serial, body=store.get(owner, id, kind))
        case Recall(serial, "begin", owner, id, kind, size):
            return Told(serial, body=store.begin(owner, id, kind, size))
        case Recall(serial, "holder_of", owner, item):
            return Told(serial, holder=store.holder_of(owner, item))
        case Recall(serial, _, owner, id, kind):
            return Told(serial, done=store.delete(owner, id, kind))
