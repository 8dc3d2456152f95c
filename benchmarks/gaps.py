"""How far other work widens the gaps between the tokens of running streams.

    python -m benchmarks.gaps http://127.0.0.1:8000 --model NAME [--embedder NAME] [--pictures NAME] [--rounds 3]

So many streams decode. Their gaps are measured while nothing else is asked, and while one other client asks without
end: prompts of 6,000 words, schemas of 200 lines that are new, texts to embed, pictures. For each kind, in turns: the
median and the 99th percentile of the gaps, beside those of quiet streams in the same round, and how many of the other
requests were answered in a second.
"""

import argparse
import asyncio
import base64
import io
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import aiohttp

from benchmarks.load import Reply, ask, percentile
from benchmarks.scenarios import text

STARTING: Final = 2.0  # seconds that a measurement leaves out: streams and the other client begin
Asked = tuple[str, dict[str, Any]]  # the address and body of a request


def chat(model: str, content: Any, tokens: int, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    return {"model": model, "messages": [message], "max_tokens": tokens, "temperature": 0, **fields}


def prompts(model: str, seeds: Iterator[int]) -> Asked:
    return "/v1/chat/completions", chat(model, text(6000, next(seeds)), 1)


def schemas(model: str, seeds: Iterator[int]) -> Asked:
    number = next(seeds)
    fields = {
        f"field_{number}_{index}": {"type": "array", "items": {"enum": text(8, index).split()}}
        for index in range(50)
    }
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}
    return "/v1/chat/completions", chat(model, "Fill the form.", 4, response_format=form)


def texts(model: str, seeds: Iterator[int]) -> Asked:
    return "/v1/embeddings", {"model": model, "input": [text(200, next(seeds)) for _ in range(32)]}


def pictures(model: str, seeds: Iterator[int]) -> Asked:
    from PIL import Image

    held = io.BytesIO()
    Image.new("RGB", (640, 480), (next(seeds) % 256, 90, 30)).save(held, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    return "/v1/chat/completions", chat(model, content, 1)


async def disturb(session: aiohttp.ClientSession, url: str, make: Callable[[], Asked]) -> int:
    """Ask one request after the other until this is cancelled; how many were answered."""
    answered = 0
    with suppress(asyncio.CancelledError):
        while True:
            path, body = make()
            async with session.post(url + path, json=body) as response:
                assert response.status == 200, await response.text()
                await response.read()
            answered += 1
    return answered


async def measure(
    options: argparse.Namespace, make: Callable[[], Asked] | None, seeds: Iterator[int]
) -> dict[str, float]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=2**20) as session:
        replies = [Reply(time.perf_counter()) for _ in range(options.streams)]
        long = {"stream": True, "ignore_eos": True}
        streams = [
            asyncio.create_task(
                ask(
                    session,
                    options.url,
                    chat(options.model, f"{next(seeds)}. Tell a story.", 4000, **long),
                    reply,
                )
            )
            for reply in replies
        ]
        other = None if make is None else asyncio.create_task(disturb(session, options.url, make))
        await asyncio.sleep(STARTING)
        begun = time.perf_counter()
        await asyncio.sleep(options.seconds)
        for task in (*streams, *([] if other is None else [other])):
            task.cancel()
        answered = 0 if other is None else await other
        await asyncio.gather(*streams, return_exceptions=True)
    gaps = [
        later - earlier
        for reply in replies
        for earlier, later in itertools.pairwise(reply.chunks)
        if later > begun
    ]
    assert gaps, next((reply.error for reply in replies if reply.error), "no tokens came")
    return {
        "median": 1e3 * statistics.median(gaps),
        "p99": 1e3 * (percentile(gaps, 0.99) or 0.0),
        "answered": answered / (options.seconds + STARTING),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--embedder")
    parser.add_argument("--pictures", help="a model that sees")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    seeds = itertools.count(time.time_ns() % 10**9)
    kinds: dict[str, Callable[[], Asked] | None] = {
        "nothing": None,
        "prompts of 6,000 words": partial(prompts, options.model, seeds),
        "new schemas": partial(schemas, options.model, seeds),
    }
    if options.embedder:
        kinds["texts to embed"] = partial(texts, options.embedder, seeds)
    if options.pictures:
        kinds["pictures"] = partial(pictures, options.pictures, seeds)
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(options.rounds):
        for name, make in kinds.items():
            found[name].append(asyncio.run(measure(options, make, seeds)))
    print("| beside | gap ms | gap p99 ms | of quiet | answered a second |\n|---|---|---|---|---|")
    quiet = found["nothing"]
    for name, rounds in found.items():
        median, p99, answered = (
            statistics.median(each[figure] for each in rounds) for figure in ("median", "p99", "answered")
        )
        ratio = statistics.median(one["p99"] / other["p99"] for one, other in zip(rounds, quiet, strict=True))
        print(f"| {name} | {median:.0f} | {p99:.0f} | {ratio:.2f} | {answered:.2f} |")


if __name__ == "__main__":
    main()
