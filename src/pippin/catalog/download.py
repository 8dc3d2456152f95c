"""Downloads a model from the Hugging Face Hub in a child process that can be stopped at any time.

A process, because a stalled transfer inside a library cannot be interrupted in a thread, and because the library takes
longer to import than the whole server.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from pippin.core.decoding import JsonDecoder, json_decoder
from pippin.core.errors import ErrorKind, ServerError

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""Called with `done` and `total` bytes, and what is going on."""

LONGEST_LINE: Final = 1024 * 1024


class Download(Struct, frozen=True):
    repository: str
    cache: str  # folder of the Hub's cache
    timeout: float = 300.0  # seconds without data
    retries: int = 3
    first_wait: float = 1.0  # seconds before the second try; doubled each time
    files: tuple[str, ...] = ()  # name patterns; empty: the files that a model needs


class Progressed(Struct, frozen=True, tag=True):
    """The child's progress, in bytes."""

    done: int
    total: int


class Fetched(Struct, frozen=True, tag=True):
    folder: str


class Refused(Struct, frozen=True, tag=True):
    kind: ErrorKind
    message: str
    again: bool  # a retry may help


def refused(status: int, headers: Mapping[str, str], name: str) -> Refused:
    """What an error of the Hub means, which was asked for the model `name`."""
    if headers.get("X-Error-Code") == "GatedRepo":
        message = (
            f"The model {name} is gated: accept its terms on its page of the Hub, then put a token of your account "
            "into HF_TOKEN or run `hf auth login`."
        )
        return Refused("permission", message, again=False)
    if status in (401, 403, 404):
        message = (
            f"The Hub has no model {name}, or it is private and needs a token in HF_TOKEN. `pippin search WORDS` "
            "finds models."
        )
        return Refused("model_not_found", message, again=False)
    message = f"The Hub answered {status} when asked for {name}."
    return Refused("load_failed", message, again=status >= 500 or status in (408, 429))


Line = Progressed | Fetched | Refused
_line: Final[JsonDecoder[Line]] = json_decoder(Line)


async def download(wanted: Download, on_progress: Progress) -> str:
    """Download and return the snapshot's folder. Resumes what an earlier attempt fetched.

    Raises `ServerError`. Cancelling kills the child at once.
    """
    import asyncio  # slow to import, as is what needs it, and most commands download nothing

    waits = (wanted.first_wait * 2**failed for failed in range(wanted.retries))
    while True:
        outcome = await _attempt(wanted, on_progress)
        if isinstance(outcome, Fetched):
            return outcome.folder
        wait = next(waits, None)
        if not outcome.again or wait is None:
            # What to do about a temporary failure, such as a broken network. Other failures say it themselves.
            way_out = (
                f" Once that is over, `pippin pull {wanted.repository}` goes on from what has arrived; `pippin list` "
                "shows what is here."
            )
            raise ServerError(outcome.kind, outcome.message + (way_out if outcome.again else ""), "model")
        logger.warning("%s Trying again in %.0f s.", outcome.message, wait)
        on_progress(0, 0, f"{outcome.message} Trying again in {wait:.0f} s.")
        await asyncio.sleep(wait)


async def _attempt(wanted: Download, on_progress: Progress) -> Fetched | Refused:
    import asyncio

    from pippin.core.processes import ended, started

    # Its input closes when this process ends, which ends the child.
    child = await started(
        sys.executable,
        "-m",
        "pippin.catalog.hub_child",
        msgspec.json.encode(wanted).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=LONGEST_LINE,
    )
    assert child.stdout is not None
    done, clock = -1, asyncio.get_running_loop().time
    deadline = clock() + wanted.timeout
    try:
        while True:
            try:
                text = await asyncio.wait_for(child.stdout.readline(), deadline - clock())
            except TimeoutError:
                message = f"The download of {wanted.repository} stood still for {wanted.timeout:.0f} s."
                return Refused("timeout", message, again=True)
            if not text:
                message = f"The download of {wanted.repository} ended without a word."
                return Refused("internal", message, again=True)
            line: Line = _line.decode(text)
            match line:
                case Progressed(so_far, total):
                    if so_far != done:
                        done, deadline = so_far, clock() + wanted.timeout
                        on_progress(so_far, total, wanted.repository)
                case Fetched() | Refused():
                    return line
    finally:
        await ended(child)
