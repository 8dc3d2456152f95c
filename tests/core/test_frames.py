"""Frames: whatever pieces the bytes come in, the payloads are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.core.link import LARGEST, FrameBuffer, FrameError, frame


@given(st.lists(st.binary(max_size=300)), st.data())
def test_a_stream_cut_anywhere_gives_the_same_frames(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, payloads))
    buffer, found, position = FrameBuffer(), [], 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        found += list(buffer.feed(stream[position : position + size]))
        position += size
    assert found == payloads


def test_a_length_that_no_frame_has_is_refused_before_anything_is_kept_for_it() -> None:
    with pytest.raises(FrameError, match="claims"):
        list(FrameBuffer().feed((LARGEST + 1).to_bytes(4, "big")))
