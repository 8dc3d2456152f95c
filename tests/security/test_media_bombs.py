"""Threats 60 to 62: small files that would take much time or memory to decode."""

import io
import struct
import time
import wave
import zlib

import pytest

from pippin.core.errors import ServerError
from pippin.engines import pictures, sound


def wav(rate: int, channels: int, frames: int = 100) -> bytes:
    data = b"\0\1" * channels * frames
    head = struct.pack("<HHIIHH", 1, channels, rate, rate * 2 * channels & 0xFFFFFFFF, 2 * channels, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    "data", [wav(2_000_000_000, 1), wav(1, 1), wav(16000, 200)], ids=["fast", "slow", "wide"]
)
def test_sound_of_absurd_rates_and_channels_is_refused_at_once(data: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(ServerError) as caught:
        sound.decode(data, 16000, param="file")
    assert caught.value.report.status == 400
    assert time.monotonic() - began < 5


def test_sound_that_lasts_too_long_is_refused() -> None:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(1)
        writer.setframerate(8000)
        writer.writeframes(bytes(8000 * 20))
    with pytest.raises(ServerError) as caught:
        sound.decode(file.getvalue(), 16000, param="file", longest=10)
    assert caught.value.report.kind == "too_large"


@pytest.mark.parametrize("data", [b"", b"RIFF", b"ID3\x04", b"OggS" + bytes(100), wav(16000, 1)[:30]])
def test_sound_that_is_damaged_is_the_clients_fault(data: bytes) -> None:
    with pytest.raises(ServerError) as caught:
        sound.decode(data, 16000, param="file")
    assert caught.value.report.status in (400, 413)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1 << 20))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_a_picture_that_claims_millions_of_pixels_a_side_is_refused_before_it_is_decoded() -> None:
    began = time.monotonic()
    with pytest.raises(ServerError):
        pictures.decode(png(100_000, 100_000), param="image")
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "data",
    [
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.4",
        b"\x00\x00\x00\x0cjP  \r\n\x87\n",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1",
        png(8, 8)[:40],
    ],
    ids=["svg", "pdf", "jpeg2000", "eps", "cut"],
)
def test_formats_that_are_not_on_the_list_and_damaged_ones_are_refused_without_addresses(data: bytes) -> None:
    with pytest.raises(ServerError) as caught:
        pictures.decode(data, param="image")
    assert caught.value.report.status == 400
    assert "0x" not in caught.value.report.message
    assert "BytesIO" not in caught.value.report.message
