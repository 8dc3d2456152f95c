"""Files that are not what they are called."""

from pathlib import Path

import pytest

from pippin.core.published import mistaken


@pytest.mark.parametrize("length", [60, 15_392])
def test_a_header_whose_length_begins_with_a_sign_of_web_pages_is_none(length: int, tmp_path: Path) -> None:
    """`<` is 60, and ` <` is 15,392, as the first bytes of a length."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b'{"a":' + b" " * 60)
    assert mistaken(path) is None
