"""A quick timing of one streamed answer of the running server."""

import time
from argparse import Namespace
from typing import Any, Final

import msgspec

from pippin.cli.running import LOAD_SECONDS, address
from pippin.config import environment
from pippin.core.errors import ServerError

PROMPT: Final = "Count from one to one hundred in words."
TOKENS: Final = 128


def time_one_answer(parsed: Namespace, model: str) -> str:
    """A line with the time to the first token and the pace after it, warm: the first answer is not counted."""
    _answer(parsed, model, 1)
    first, total, tokens = _answer(parsed, model, TOKENS)
    pace = (tokens - 1) / (total - first) if tokens > 1 and total > first else 0.0
    return f"first token after {first * 1000:.0f} ms, then {pace:.1f} tokens/s ({tokens} tokens)"


def _answer(parsed: Namespace, model: str, limit: int) -> tuple[float, float, int]:
    """Seconds to the first token and to the last, and how many came."""
    import httpx

    key = parsed.api_key or environment.client_key()
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": limit,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    started = time.perf_counter()
    first = last = 0.0
    tokens = 0
    try:
        with (
            httpx.Client(base_url=address(parsed), timeout=LOAD_SECONDS, trust_env=False) as client,
            client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response,
        ):
            if response.is_error:
                raise ServerError("internal", f"The server answered {response.status_code}.")
            for line in response.iter_lines():
                chunk = _chunk(line)
                if chunk is None:
                    continue
                if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                    last = time.perf_counter() - started
                    first = first or last
                tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    except httpx.TransportError as error:
        raise ServerError("not_found", f"No server answers at {address(parsed)} ({error}).") from None
    return first, last, tokens


def _chunk(line: str) -> dict[str, Any] | None:
    data = line.removeprefix("data: ")
    if data == line or data == "[DONE]":
        return None
    chunk: dict[str, Any] = msgspec.json.decode(data)
    return chunk
