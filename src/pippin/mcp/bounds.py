"""Bounds what an MCP server may send over HTTP: it is trusted with its tools, not with this process's memory.

The library bounds the events of a stream, but not whole answers, nor their size after decompression.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import httpx2
from mcp.shared._httpx_utils import create_mcp_http_client

LARGEST: Final = 8 << 20  # bytes of an answer


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
        self._stream = stream
        self._left = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            self._left -= len(data)
            if self._left < 0:
                # The library treats the answer as broken.
                raise httpx2.StreamError("It is too large, or compressed, which would hide its size.")
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


def bounded_client(
    see: Callable[[httpx2.Response], Awaitable[None]],
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """The library's client, limited to uncompressed answers of at most `LARGEST` bytes (event streams aside). `see` is
    called with each answer."""
    plain = (headers or {}) | {"accept-encoding": "identity"}
    client = create_mcp_http_client(headers=plain, timeout=timeout, auth=auth)
    client.event_hooks = {"response": [_bound, see]}
    return client


async def _bound(response: httpx2.Response) -> None:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        response.stream = _Bounded(response.stream, 0)
    elif not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _Bounded(response.stream, LARGEST)
