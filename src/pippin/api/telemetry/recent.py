"""The last requests and totals as JSON, with the field names of mlx_vlm.server's `/metrics`.

Unlike there, what each request asked for is left out.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from pippin.api.answers.answer import Observer, RequestObserver
from pippin.core.errors import ErrorKind
from pippin.core.events import Event, Finished, PartDelta
from pippin.core.models import EngineStats

KEPT: Final = 32
WINDOWS: Final = (32, 64)
"""Sizes, in tokens, of the windows at the start and the end of a choice for which the speed is reported."""


class RecentRequests(Observer):
    """Keeps the figures of the last requests, and counts all."""

    def __init__(self) -> None:
        self.recent: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.started = self.completed = self.failed = self.streaming = 0
        self.prompt_tokens = self.completion_tokens = 0
        self.seconds = 0.0  # of all completed requests
        self.last_error: str | None = None

    def request(self, operation: str, model: str, *, stream: bool) -> "RecentRequest":
        self.started += 1
        self.streaming += stream
        return RecentRequest(self, operation, model, stream=stream)

    def ended(self, record: dict[str, Any], error: ErrorKind | None) -> None:
        self.recent.append(record)
        if error is not None:
            self.failed += 1
            self.last_error = error
            return
        self.completed += 1
        self.prompt_tokens += record["prompt_tokens"]
        self.completion_tokens += record["completion_tokens"]
        self.seconds += record["request_elapsed_s"]

    def body(self, uptime: float, engines: EngineStats) -> dict[str, Any]:
        recent = list(self.recent)
        average = self.seconds / self.completed if self.completed else 0.0
        return {
            "latest": recent[-1] if recent else None,
            "recent": recent,
            "summary": {
                "uptime_s": round(uptime, 3),
                "requests_started": self.started,
                "requests_completed": self.completed,
                "requests_failed": self.failed,
                "streaming_requests": self.streaming,
                "in_flight": self.started - self.completed - self.failed,
                "prompt_tokens_total": self.prompt_tokens,
                "completion_tokens_total": self.completion_tokens,
                "generated_tokens_total": self.completion_tokens,
                "avg_request_time_s": round(average, 4),
                "avg_request_tok_s": rate(self.completion_tokens, self.seconds),
                "last_request_at": recent[-1]["timestamp_unix"] if recent else None,
                "last_error": self.last_error,
            },
            "server": {"running": engines.running, "queued": engines.waiting, "apc": engines.cache.hits},
        }


class RecentRequest(RequestObserver):
    """One request while it runs; its record is complete when it is closed."""

    def __init__(self, all_requests: RecentRequests, operation: str, model: str, *, stream: bool) -> None:
        self._all = all_requests
        self._record: dict[str, Any] = {
            "endpoint": operation,
            "model": model,
            "stream": stream,
            "backend": "batched",
        }
        self._begun = time.monotonic()
        self._first: float | None = None
        self._error: ErrorKind | None = None
        self._finished: list[Finished] = []
        self._passed: list[tuple[int, float]] = []  # tokens of the first choice so far, and the time

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case PartDelta(choice=choice, completed=completed):
                    now = time.monotonic()
                    self._first = self._first or now
                    if choice == 0 and completed:
                        self._passed.append((completed, now))
                case Finished():
                    self._finished.append(event)

    def failed(self, kind: ErrorKind) -> None:
        self._error = kind

    def closed(self) -> None:
        elapsed = time.monotonic() - self._begun
        usages = [each.usage for each in self._finished]
        prompt = usages[0].prompt_tokens if usages else 0
        generated = sum(each.completion_tokens for each in usages)
        prefill, decode = (
            max((getattr(each.timings, name) for each in self._finished), default=0.0) / 1e3
            for name in ("prefill", "decode")
        )
        self._record |= {
            "timestamp_unix": time.time(),
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "generated_tokens": generated,
            "reasoning_tokens": sum(each.reasoning_tokens for each in usages),
            "total_tokens": prompt + generated,
            "prompt_eval_time_s": round(prefill, 4),
            "prefill_tok_s": rate(prompt, prefill),
            "ttft_s": None if self._first is None else round(self._first - self._begun, 4),
            "decode_elapsed_s": round(decode, 4),
            "request_elapsed_s": round(elapsed, 4),
            "request_tok_s": rate(generated, elapsed),
            "decode_tok_s": rate(generated, decode),
            "finish_reason": self._finished[-1].reason if self._finished else None,
        }
        for window in WINDOWS:
            self._record[f"sliding_decode_tok_s_first_{window}"] = window_rate(self._passed, window)
            self._record[f"sliding_decode_tok_s_last_{window}"] = window_rate(self._passed, window, last=True)
        self._all.ended(self._record, self._error)


def rate(tokens: int, seconds: float) -> float:
    """Tokens a second; 0 if nothing was measured."""
    return round(tokens / seconds, 2) if seconds > 0 else 0.0


def window_rate(passed: Sequence[tuple[int, float]], window: int, *, last: bool = False) -> float | None:
    """Tokens a second over the first or last `window` tokens, or over all if there are fewer; None for fewer than two.

    `passed` holds counts of tokens and the times in seconds at which they were reached. Several may come at once.
    """
    if len(passed) < 2:
        return None
    if last:
        begin, end = next(each for each in passed if each[0] >= passed[-1][0] - window), passed[-1]
    else:
        begin = passed[0]
        end = next((each for each in passed if each[0] >= begin[0] + window), passed[-1])
    return rate(end[0] - begin[0], end[1] - begin[1])
