"""Which requests any API process may answer: those that make a model write."""

from typing import Final

from pippin.api.http.passing import request_of

PATHS: Final = ("/chat/completions", "/completions", "/messages", "/responses", "/api/chat", "/api/generate")
"""Paths without the version."""
ADDRESSES: Final = frozenset(
    address.encode()
    for path in PATHS
    for address in ((path,) if path.startswith("/api/") else (path, f"/v1{path}"))
)
UNCERTAIN: Final = frozenset((b"/responses", b"/v1/responses", b"/api/chat", b"/api/generate"))
"""Addresses whose bodies may ask for work of the first process: a background response, or loading a model."""


def is_shared(line: bytes) -> bool:
    """Whether the request with this first line may be answered by any process."""
    method, path = request_of(line)
    return method == b"POST" and path in ADDRESSES


def is_uncertain(line: bytes) -> bool:
    return request_of(line)[1] in UNCERTAIN
