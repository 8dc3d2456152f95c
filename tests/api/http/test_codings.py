"""Compressed bodies are decoded within their limit, and answers to HTTP/1.0 come without the chunked coding."""

import gzip
import zlib

import pytest
from starlette.datastructures import Headers

from pippin.api.http.body import coding_of, decoded, zstd
from pippin.api.http.protocol import Unchunked
from pippin.core.errors import ServerError

BODY = b'{"model": "m", "messages": []}'


def bare_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(BODY, mtime=0)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", bare_deflate(BODY)),
        ("zstd", zstd.compress(BODY)),
        ("gzip", gzip.compress(BODY[:9], mtime=0) + gzip.compress(BODY[9:], mtime=0)),
        ("zstd", zstd.compress(BODY[:9]) + zstd.compress(BODY[9:])),
    ],
)
def test_a_body_is_decoded(coding: str, packed: bytes) -> None:
    assert decoded(packed, coding, 1000) == BODY


def test_a_coding_that_is_not_decoded_is_named() -> None:
    for coding in ("br", "compress", "gzip, br"):
        with pytest.raises(ServerError, match=f"'{coding}'") as refused:
            coding_of(Headers({"content-encoding": coding}))
        assert refused.value.report.kind == "unsupported_media_type"
    assert coding_of(Headers({"content-encoding": "identity"})) is None
    assert coding_of(Headers({"content-encoding": "GZip"})) == "gzip"


def test_a_small_body_that_unpacks_to_a_large_one_is_not_held() -> None:
    assert decoded(gzip.compress(b"0" * 10_000_000), "gzip", 1000) is None
    assert decoded(gzip.compress(b"0" * 1000), "gzip", 1000) == b"0" * 1000
    assert decoded(zstd.compress(b"0" * 10_000_000), "zstd", 1000) is None
    assert decoded(gzip.compress(b"0" * 600) * 2, "gzip", 1000) is None
    with pytest.raises(ServerError, match="too many parts"):
        decoded(gzip.compress(b"") * 1000, "gzip", 1000)


@pytest.mark.parametrize("packed", [b"no gzip at all", gzip.compress(BODY, mtime=0)[:-9], b""])
def test_damaged_data_is_refused(packed: bytes) -> None:
    with pytest.raises(ServerError, match="can't be decoded as gzip"):
        decoded(packed, "gzip", 1000)
    with pytest.raises(ServerError, match="can't be decoded as zstd"):
        decoded(zstd.compress(BODY)[:-4], "zstd", 1000)
    with pytest.raises(ServerError, match="can't be decoded as zstd"):
        decoded(packed, "zstd", 1000)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def test_chunks_become_one_body() -> None:
    chunks = [b"a", b"0\r\n\r\n", b"b" * 300]
    writes = [
        HEAD,
        *(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks),
        b"",
        b"2\r\nhi\r\n0\r\n\r\n",
    ]
    written: list[bytes] = []
    write = Unchunked(written.append)
    for each in writes:
        write(each)
    head, _, body = b"".join(written).partition(b"\r\n\r\n")
    assert head == b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close"
    assert body == b"".join(chunks) + b"hi"


def test_an_answer_that_is_not_chunked_stays_as_it_is() -> None:
    writes = [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", b"hi"]
    written: list[bytes] = []
    write = Unchunked(written.append)
    for each in writes:
        write(each)
    assert written == writes
