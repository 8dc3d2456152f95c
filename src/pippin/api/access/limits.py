"""How much one caller may ask for: requests and tokens a minute, and requests at once for all."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from pippin.api.access.exchange import Exchange
from pippin.api.access.keys import Allowance, Key
from pippin.core.errors import ServerError

REPORTED = tuple(
    f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")
)
"""Headers that tell a caller where it stands."""


What = Literal["requests", "tokens"]

MINUTE: Final = 60.0
REMEMBERED: Final = 10_000
"""Callers whose use is remembered; the one not seen for longest is forgotten first."""


@dataclass(slots=True)
class Bucket:
    """A token bucket, which fills steadily to `size` in a minute.

    `level` may go below zero: how many tokens an answer takes is known only at its end.
    """

    size: int
    level: float
    filled: float

    def fill(self, now: float) -> None:
        self.level = min(self.size, self.level + (now - self.filled) * self.size / MINUTE)
        self.filled = now

    def resize(self, size: int) -> None:
        """Take over another limit. What share of it is left stays, so that a change of settings gives nobody more."""
        self.level *= size / self.size
        self.size = size

    def until(self, level: float) -> float:
        """Seconds until the bucket has filled to `level`."""
        return max(0.0, (level - self.level) * MINUTE / self.size)


class Ledger(Protocol):
    """Counts what callers have used, and how many requests run."""

    def bucket(self, what: What, account: str, size: int, now: float) -> AbstractContextManager[Bucket]:
        """The bucket of an account, filled up to `now`, to be changed; a full one for a new account."""
        ...

    def enter(self, most: int | None) -> bool:
        """Count one more running request, if `most` allows it; whether it does."""
        ...

    def leave(self, most: int | None) -> None: ...

    def running(self, most: int | None) -> int:
        """How many run; only this process's where `most` is None, for then nobody needs to know."""
        ...


class OwnLedger:
    """The ledger of a server that is one process."""

    def __init__(self) -> None:
        self._buckets: dict[What, OrderedDict[str, Bucket]] = {
            "requests": OrderedDict(),
            "tokens": OrderedDict(),
        }
        self._running = 0

    @contextmanager
    def bucket(self, what: What, account: str, size: int, now: float) -> Iterator[Bucket]:
        buckets = self._buckets[what]
        bucket = buckets.get(account)
        if bucket is None:
            bucket = buckets[account] = Bucket(size, size, now)
            if len(buckets) > REMEMBERED:
                buckets.popitem(last=False)
        buckets.move_to_end(account)
        brought_up_to_date(bucket, size, now)
        yield bucket

    def enter(self, most: int | None) -> bool:
        if most is not None and self._running >= most:
            return False
        self._running += 1
        return True

    def leave(self, most: int | None) -> None:
        self._running -= 1

    def running(self, most: int | None) -> int:
        return self._running


def brought_up_to_date(bucket: Bucket, size: int, now: float) -> None:
    bucket.fill(now)
    if bucket.size != size:
        bucket.resize(size)


class Limits:
    """Counts requests and tokens of each caller in a minute, and the requests of all that run at once."""

    def __init__(
        self,
        default: Allowance,
        max_concurrent: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        ledger: Ledger | None = None,
    ) -> None:
        """`default` holds for every caller whose key has no allowance of its own. `ledger`: where it is counted; in
        this process alone if it is not given."""
        self._default = default
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._ledger: Ledger = OwnLedger() if ledger is None else ledger

    def adopt(self, default: Allowance, max_concurrent: int | None) -> None:
        """Take over changed limits. What callers have used of theirs counts on."""
        self._default = default
        self._max_concurrent = max_concurrent

    def admit(self, exchange: Exchange) -> None:
        """Count one request of a caller, and tell where it stands in headers. Raises `ServerError`.

        A request beyond what may run at once is refused here, before its body is read.
        """
        self._check_place()
        if exchange.background:
            return
        allowance = self._allowance_of(exchange)
        now = self._clock()
        if allowance.requests:
            with self._ledger.bucket("requests", exchange.account, allowance.requests, now) as bucket:
                refused = bucket.level < 1
                bucket.level -= not refused
            _report(exchange, "requests", bucket)
            if refused:
                raise _exceeded("requests", allowance.requests, bucket.until(1))
        if allowance.tokens:
            with self._ledger.bucket("tokens", exchange.account, allowance.tokens, now) as bucket:
                pass  # what is used is known at the end
            _report(exchange, "tokens", bucket)
            if bucket.level <= 0:
                raise _exceeded("tokens", allowance.tokens, bucket.until(1))

    def forgive(self, exchange: Exchange) -> None:
        """Undo what `admit` has counted: the request is answered elsewhere, where it is counted again."""
        allowance = self._allowance_of(exchange)
        if allowance.requests and not exchange.background:
            with self._ledger.bucket(
                "requests", exchange.account, allowance.requests, self._clock()
            ) as bucket:
                bucket.level += 1

    def standing(self, key: Key) -> dict[What, tuple[int, int]]:
        """Of each limit of a key, how much it is a minute and how much is left now; nothing for what has no limit."""
        allowance = key.allowance or self._default
        sizes: dict[What, int] = {"requests": allowance.requests, "tokens": allowance.tokens}
        found: dict[What, tuple[int, int]] = {}
        for what, size in sizes.items():
            if size:
                with self._ledger.bucket(what, key.owner, size, self._clock()) as bucket:
                    found[what] = (size, max(0, math.floor(bucket.level)))
        return found

    def enter(self) -> None:
        """Count a request among those that run now; `leave` undoes it. Raises `ServerError`."""
        if not self._ledger.enter(self._max_concurrent):
            raise _busy(self._ledger.running(self._max_concurrent))

    def _check_place(self) -> None:
        most = self._max_concurrent
        if most is not None and (running := self._ledger.running(most)) >= most:
            raise _busy(running)

    def leave(self, exchange: Exchange, tokens: int) -> None:
        """Take a request that has ended out of those that run, and charge its caller for its tokens."""
        self._ledger.leave(self._max_concurrent)
        if exchange.background:
            return
        allowance = self._allowance_of(exchange)
        if allowance.tokens:
            with self._ledger.bucket("tokens", exchange.account, allowance.tokens, self._clock()) as bucket:
                bucket.level -= tokens

    def _allowance_of(self, exchange: Exchange) -> Allowance:
        if exchange.key is None or exchange.key.allowance is None:
            return self._default
        return exchange.key.allowance


def _busy(running: int) -> ServerError:
    message = f"The server is busy with {running} requests, the most it takes at once."
    return ServerError("overloaded", message, retry_after=1.0)


def _report(exchange: Exchange, what: str, bucket: Bucket) -> None:
    """Tell in OpenAI's headers how full a bucket is; `reset` is when all of it may be used again."""
    exchange.headers[f"x-ratelimit-limit-{what}"] = str(bucket.size)
    exchange.headers[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(bucket.level)))
    exchange.headers[f"x-ratelimit-reset-{what}"] = f"{bucket.until(bucket.size):.3f}s"


def _exceeded(what: str, limit: int, wait: float) -> ServerError:
    return ServerError(
        "rate_limited",
        f"The limit of {limit} {what} a minute is reached; try again in {max(1, math.ceil(wait))} seconds.",
        retry_after=max(wait, 1.0),
    )
