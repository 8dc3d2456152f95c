"""How much one caller may ask for: requests and tokens a minute, and requests at once for all."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from pippin.api.access.exchange import Exchange
from pippin.api.access.keys import Allowance
from pippin.core.errors import ServerError

MINUTE = 60.0
REPORTED = tuple(
    f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")
)
"""Headers that tell a caller where it stands."""
REMEMBERED = 10_000
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


class Limits:
    """Counts requests and tokens of each caller in a minute, and the requests of all that run at once."""

    def __init__(
        self,
        default: Allowance,
        max_concurrent: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`default` holds for every caller whose key has no allowance of its own."""
        self._default = default
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._requests: OrderedDict[str, Bucket] = OrderedDict()
        self._tokens: OrderedDict[str, Bucket] = OrderedDict()
        self.running = 0

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
            bucket = _bucket(self._requests, exchange.account, allowance.requests, now)
            refused = bucket.level < 1
            bucket.level -= not refused
            _report(exchange, "requests", bucket)
            if refused:
                raise _exceeded("requests", allowance.requests, bucket.until(1))
        if allowance.tokens:
            bucket = _bucket(self._tokens, exchange.account, allowance.tokens, now)
            _report(exchange, "tokens", bucket)
            if bucket.level <= 0:
                raise _exceeded("tokens", allowance.tokens, bucket.until(1))

    def enter(self) -> None:
        """Count a request among those that run now; `leave` undoes it. Raises `ServerError`."""
        self._check_place()
        self.running += 1

    def _check_place(self) -> None:
        if self._max_concurrent is not None and self.running >= self._max_concurrent:
            raise ServerError(
                "overloaded",
                f"The server is busy with {self.running} requests, the most it takes at once.",
                retry_after=1.0,
            )

    def leave(self, exchange: Exchange, tokens: int) -> None:
        """Take a request that has ended out of those that run, and charge its caller for its tokens."""
        self.running -= 1
        if exchange.background:
            return
        allowance = self._allowance_of(exchange)
        if allowance.tokens:
            _bucket(self._tokens, exchange.account, allowance.tokens, self._clock()).level -= tokens

    def _allowance_of(self, exchange: Exchange) -> Allowance:
        if exchange.key is None or exchange.key.allowance is None:
            return self._default
        return exchange.key.allowance


def _bucket(buckets: OrderedDict[str, Bucket], caller: str, size: int, now: float) -> Bucket:
    bucket = buckets.get(caller)
    if bucket is None:
        bucket = buckets[caller] = Bucket(size, size, now)
        if len(buckets) > REMEMBERED:
            buckets.popitem(last=False)
    buckets.move_to_end(caller)
    bucket.fill(now)
    if bucket.size != size:
        bucket.resize(size)
    return bucket


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
