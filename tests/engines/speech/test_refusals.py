"""What the log says where a library refuses a request."""

import logging

import pytest

from pippin.core.errors import ServerError
from pippin.engines.refusals import library_refusals


def refused() -> None:
    with library_refusals("voice"):
        raise ValueError("no voice 'what the client sent'")


def test_a_refusal_of_a_library_is_one_line_without_the_clients_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"), pytest.raises(ServerError, match="what the client sent"):
        refused()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.exc_info is None
    assert record.getMessage().startswith(
        "A model refused a request: ValueError in engines/speech/test_refusals.py:"
    )


def test_the_traceback_of_a_refusal_is_told_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"), pytest.raises(ServerError):
        refused()
    assert [record.levelname for record in caplog.records if record.exc_info] == ["DEBUG"]
