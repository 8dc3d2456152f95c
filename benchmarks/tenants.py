"""What a caller waits for beside another who asks without end: the first token of an answer, alone and in the crowd.

    python -m benchmarks.tenants --url URL --model NAME --greedy KEY --other KEY [--streams 50] [--rounds 5]

The server runs with both keys in its `--api-key-file`. The greedy caller keeps so many long streams open; the other
then asks for a short answer several times, and the median is told in milliseconds.
"""

import argparse
import asyncio
import statistics
import time

import httpx


class Caller:
    """Streams answers to one key."""

    def __init__(self, client: httpx.AsyncClient, model: str, key: str) -> None:
        self._client, self._model = client, model
        self._headers = {"authorization": f"Bearer {key}"}

    async def first_token(self, text: str, tokens: int) -> float:
        """Seconds until the first text; the answer is left then."""
        begun = time.perf_counter()
        async with self._stream(text, tokens) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if '"content":"' in line and '"content":""' not in line:
                    return time.perf_counter() - begun
        raise SystemExit("An answer had no text.")

    async def on_and_on(self, number: int) -> None:
        """One long answer after the other."""
        while True:
            async with self._stream(f"Tell a very long story about the number {number}.", 2000) as reply:
                async for _ in reply.aiter_raw():
                    pass

    def _stream(self, text: str, tokens: int):  # type: ignore[no-untyped-def]  # the library's own context manager
        messages = [{"role": "user", "content": text}]
        body = {"model": self._model, "messages": messages, "max_tokens": tokens, "stream": True}
        return self._client.stream("POST", "/v1/chat/completions", json=body, headers=self._headers)


async def median(caller: Caller, rounds: int, word: str) -> float:
    """Milliseconds; each prompt is new to the prefix cache."""
    waits = [await caller.first_token(f"{word} {number}: say hello.", 8) for number in range(rounds)]
    return statistics.median(waits) * 1000


async def measure(options: argparse.Namespace) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=options.url, timeout=600, limits=limits) as client:
        other, greedy = (Caller(client, options.model, key) for key in (options.other, options.greedy))
        await other.first_token("Hello", 8)  # the model may have to be loaded
        alone = await median(other, options.rounds, "Alone")
        crowd = [asyncio.create_task(greedy.on_and_on(number)) for number in range(options.streams)]
        await asyncio.sleep(options.settle)
        beside = await median(other, options.rounds, "Beside")
        for each in crowd:
            each.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
    print(f"| first token alone | beside {options.streams} streams | ratio |")
    print("|---|---|---|")
    print(f"| {alone:.0f} ms | {beside:.0f} ms | {beside / alone:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="default")
    parser.add_argument("--greedy", required=True, help="the key of the caller with many streams")
    parser.add_argument("--other", required=True, help="the key of the caller who waits")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settle", type=float, default=10.0, help="seconds for the streams to begin")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
