"""Traces without words, messages without folders."""

import pytest

from pippin.core.errors import trace_of, without_folders


def test_a_trace_tells_places_and_types_and_no_message() -> None:
    try:
        try:
            raise KeyError("a secret")
        except KeyError as error:
            raise ExceptionGroup("a secret", [ValueError("a secret"), OSError(2, "a secret")]) from error
    except ExceptionGroup as error:
        trace = trace_of(error)
    assert "a secret" not in trace.replace('"a secret"', "")  # which stands in the source line
    for name in ("KeyError", "ExceptionGroup", "ValueError", "OSError", "test_traces.py"):
        assert name in trace
    assert trace.index("KeyError\n") < trace.rindex("ExceptionGroup")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("No such file: '/home/me/models/x/config.json'", "No such file: 'config.json'"),
        ("/Users/me/a b/model/w.safetensors is cut", "w.safetensors is cut"),
        ("in /Users/me/a b/model", "in the model"),
        ("~/models/x.bin, /opt/y.bin: no", "x.bin, y.bin: no"),
        ("3/4 of https://host/a/b and and/or", "3/4 of https://host/a/b and and/or"),
        ("", ""),
    ],
)
def test_a_message_names_files_and_not_where_they_lie(text: str, left: str) -> None:
    assert without_folders(text, "/Users/me/a b/model", None) == left
