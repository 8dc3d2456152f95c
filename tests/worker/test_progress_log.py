"""Lines of the log about running answers."""

import logging

import pytest

from pippin.core.models import EngineStats, RequestStatus
from pippin.worker.main import ProgressLog
from tests.worker.test_loop import Probe


class Writing(Probe):
    """An engine whose requests have got so many tokens."""

    def __init__(self, **tokens: int) -> None:
        super().__init__()
        self.requests = tuple(
            RequestStatus(id=name, phase="generation", generated_tokens=count, tokens_per_second=2.5)
            for name, count in tokens.items()
        )

    def stats(self) -> EngineStats:
        return EngineStats(requests=self.requests)


def test_each_interval_of_a_request_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    progress = ProgressLog(10)
    with caplog.at_level(logging.INFO):
        for tokens in ({"a": 9}, {"a": 10, "b": 3}, {"a": 12, "b": 31}, {"b": 39}, {"a": 10, "b": 40}):
            progress.note(Writing(**tokens))
    assert [record.getMessage().split()[0] for record in caplog.records] == ["10", "31", "10", "40"]
    assert caplog.messages[0] == "10 tokens are written, 2.5 a second."
