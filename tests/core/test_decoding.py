"""Types are read by many threads at once from their first use on."""

import subprocess
import sys

import msgspec
import pytest

from pippin.core.decoding import convert, from_json, from_message, json_decoder

FIRST_USES = """
import sys, threading
import msgspec
from pippin.core import decoding

sys.setswitchinterval(1e-6)
for number in range(40):
    fields = [(f"f{i}", int | str | None, None) for i in range(30)]
    inner = msgspec.defstruct(f"Inner{number}", fields)
    outer = msgspec.defstruct(f"Outer{number}", [(f"f{i}", list[inner] | None, None) for i in range(30)])
    together = threading.Barrier(4)

    def read():
        together.wait()
        for _ in range(10):
            value = READ
            assert value.f29[0].f29 == 1

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("read")
"""


@pytest.mark.parametrize(
    "read",
    [
        """decoding.from_json(b'{"f29":[{"f29":1}]}', outer)""",
        """decoding.convert({"f29": [{"f29": 1}]}, outer)""",
        """decoding.json_decoder(outer).decode(b'{"f29":[{"f29":1}]}')""",
        """decoding.from_message(msgspec.msgpack.encode({"f29": [{"f29": 1}]}), outer)""",
    ],
)
def test_the_first_use_of_a_type_may_be_by_many_threads_at_once(read: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FIRST_USES.replace("READ", read)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "read\n"), ended.stderr


class Point(msgspec.Struct):
    x: int


def test_what_does_not_fit_is_told() -> None:
    assert from_json(b'{"x": 1}', Point) == Point(1) == json_decoder(Point).decode(b'{"x": 1}')
    assert from_json(b'{"x": 1}') == {"x": 1}
    assert convert({"x": "1"}, Point, strict=False) == Point(1)
    for read in (
        lambda: from_json(b'{"x": "1"}', Point),
        lambda: convert({"x": "1"}, Point),
        lambda: from_message(msgspec.msgpack.encode({"x": "1"}), Point),
    ):
        with pytest.raises(msgspec.ValidationError, match="Expected `int`, got `str`"):
            read()
