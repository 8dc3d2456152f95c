"""Limits: requests and tokens per minute for each caller, and concurrent requests for all callers together."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from pippin.api.access.exchange import Exchange
from pippin.api.access.keys import Allowance, Key
from pippin.core.errors import ServerError

REPORTED = tuple(
    f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")
)
"""Headers that tell a caller how much of its limits is left."""


What = Literal["requests", "tokens"]

MINUTE: Final = 60.0
REMEMBERED: Final = 10_000
"""Callers whose use is remembered; the least recently seen is forgotten first."""


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
        """Change the limit. The share that is left stays the same, so that a change of settings refills no bucket."""
        self.level *= size / self.size
        self.size = size

    def take(self, draw: "Draw") -> bool:
        """Fill the bucket up to now, and take the amount if the level is high enough; returns whether it was."""
        self.fill(max(draw.now, self.filled))  # the clock that filled it before may be a little ahead
        if self.size != draw.size:
            self.resize(draw.size)
        if self.level < draw.least:
            return False
        self.level -= draw.amount
        return True

    def until(self, level: float) -> float:
        """Seconds until the bucket has filled to `level`."""
        return max(0.0, (level - self.level) * MINUTE / self.size)


@dataclass(frozen=True, slots=True)
class Draw:
    """An amount to take from the bucket of an account."""

    what: What
    account: str
    size: int  # the limit as it is now
    now: float
    amount: float
    least: float = -math.inf  # the level that the bucket must have


class Buckets:
    """What callers have used of their limits."""

    def __init__(self) -> None:
        self._buckets: dict[What, OrderedDict[str, Bucket]] = {
            "requests": OrderedDict(),
            "tokens": OrderedDict(),
        }

    def take(self, draw: Draw) -> tuple[Bucket, bool]:
        """The bucket afterwards, and whether it had enough. A new account gets a full bucket."""
        buckets = self._buckets[draw.what]
        bucket = buckets.get(draw.account)
        if bucket is None:
            bucket = buckets[draw.account] = Bucket(draw.size, draw.size, draw.now)
            if len(buckets) > REMEMBERED:
                buckets.popitem(last=False)
        buckets.move_to_end(draw.account)
        return bucket, bucket.take(draw)


class Limits:
    """Limits requests and tokens per minute for each caller, and concurrent requests for all callers together."""

    def __init__(
        self,
        default: Allowance,
        max_concurrent: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`default` applies to every caller whose key has no allowance of its own."""
        self._default = default
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._buckets = Buckets()
        self._running = 0

    def adopt(self, default: Allowance, max_concurrent: int | None) -> None:
        """Apply changed limits. What callers have already used still counts."""
        self._default = default
        self._max_concurrent = max_concurrent

    def admit(self, exchange: Exchange) -> None:
        """Count one request of a caller, and report what is left in headers. Raises `ServerError`.

        A request beyond the limit of concurrent requests is refused here, before its body is read.
        """
        self._check_place()
        if exchange.background:
            return
        allowance = self._allowance_of(exchange)
        now = self._clock()
        if allowance.requests:
            draw = Draw("requests", exchange.account, allowance.requests, now, 1, least=1)
            bucket, taken = self._buckets.take(draw)
            _report(exchange, "requests", bucket)
            if not taken:
                raise _exceeded("requests", allowance.requests, bucket.until(1))
        if allowance.tokens:
            # How many tokens are used is known only at the end.
            bucket, _ = self._buckets.take(Draw("tokens", exchange.account, allowance.tokens, now, 0))
            _report(exchange, "tokens", bucket)
            if bucket.level <= 0:
                raise _exceeded("tokens", allowance.tokens, bucket.until(1))

    def standing(self, key: Key) -> dict[What, tuple[int, int]]:
        """The size per minute of each limit of a key, and how much is left; kinds without a limit are left out."""
        allowance = key.allowance or self._default
        sizes: dict[What, int] = {"requests": allowance.requests, "tokens": allowance.tokens}
        found: dict[What, tuple[int, int]] = {}
        for what, size in sizes.items():
            if size:
                bucket, _ = self._buckets.take(Draw(what, key.owner, size, self._clock(), 0))
                found[what] = (size, max(0, math.floor(bucket.level)))
        return found

    def enter(self) -> None:
        """Count a request as running; `leave` undoes it. Raises `ServerError`."""
        self._check_place()
        self._running += 1

    def _check_place(self) -> None:
        if self._max_concurrent is not None and self._running >= self._max_concurrent:
            raise _busy(self._running)

    def leave(self, exchange: Exchange, tokens: int) -> None:
        """Stop counting a request as running, and charge its caller for its tokens."""
        self._running -= 1
        if exchange.background:
            return
        allowance = self._allowance_of(exchange)
        if allowance.tokens:
            self._buckets.take(Draw("tokens", exchange.account, allowance.tokens, self._clock(), tokens))

    def _allowance_of(self, exchange: Exchange) -> Allowance:
        if exchange.key is None or exchange.key.allowance is None:
            return self._default
        return exchange.key.allowance


def _busy(running: int) -> ServerError:
    message = f"The server is busy with {running} requests, the most it takes at once."
    return ServerError("overloaded", message, retry_after=1.0)


def _report(exchange: Exchange, what: str, bucket: Bucket) -> None:
    """Report in OpenAI's headers how full a bucket is; `reset` is the time until it is full again."""
    exchange.headers[f"x-ratelimit-limit-{what}"] = str(bucket.size)
    exchange.headers[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(bucket.level)))
    exchange.headers[f"x-ratelimit-reset-{what}"] = f"{bucket.until(bucket.size):.3f}s"


def _exceeded(what: str, limit: int, wait: float) -> ServerError:
    return ServerError(
        "rate_limited",
        f"The limit of {limit} {what} a minute is reached; try again in {max(1, math.ceil(wait))} seconds.",
        retry_after=max(wait, 1.0),
    )
