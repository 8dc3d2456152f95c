"""Asks a cluster through a process of its own, since the server does not import Ray, and begins one where none is."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from typing import Final, TypeVar

import msgspec

from pippin.core.decoding import from_json
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.core.processes import ended, started
from pippin.runtime.cluster.needs import Cluster, Refused

COMMAND: Final = (sys.executable, "-m", "pippin.runtime.cluster.placement")
ANSWER_WITHIN: Final = 90.0  # seconds: Ray looks for room for 60 of them
LAST_WORDS: Final = 5.0  # seconds for a refused process to end

T = TypeVar("T")


class Clusters:
    """Finds the cluster of an address. The one that it has begun on this machine ends with the server."""

    def __init__(self) -> None:
        self._own: tuple[Cluster, Process] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def find(self, info: ModelInfo, address: str) -> Cluster:
        """The cluster, for the model `info`. Raises `ServerError("load_failed")` if it does not answer."""
        async with self._one_at_a_time:
            if self._own is not None and self._own[1].returncode is None and address == "auto":
                return self._own[0]
            found, process = await asked(info, Cluster, address)
            if found.begun:
                self._own = found, process
            else:
                await ended(process)
            return found


async def asked(info: ModelInfo, kind: type[T], *words: str) -> tuple[T, Process]:
    """The cluster's answer, and the process that asked for it. Raises `ServerError("load_failed")`."""
    process = await started(*COMMAND, *words, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), ANSWER_WITHIN)
        answer = answer_of(line, kind)
        if answer is None:
            said = answer_of(line, Refused)
            why = await asyncio.wait_for(process.stderr.read(), LAST_WORDS) if said is None else said.refused
            raise refusal(info, why)
    except TimeoutError:
        await ended(process)
        raise refusal(info, "It did not answer.") from None
    except BaseException:
        await ended(process)
        raise
    return answer, process


def answer_of(line: bytes, kind: type[T]) -> T | None:
    try:
        return from_json(line, kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def refusal(info: ModelInfo, said: str | bytes) -> ServerError:
    """`said` is a sentence, or the output of a process that gave no answer, whose last line may tell why."""
    if isinstance(said, bytes):
        lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        said = lines[-1] if lines else "the process that asks it ended without a word."
    return ServerError("load_failed", f"The cluster cannot run {info.id!r}: {said}")
