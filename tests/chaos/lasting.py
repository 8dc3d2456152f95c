"""What comes with weeks of use: long prompts that are given up, a system that speaks late."""

import asyncio
import random
import signal
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import httpx

from tests.chaos.clients import Broken, Refused, events, progressed, user, whole
from tests.chaos.ledger import Ledger
from tests.chaos.server import ServerProcess
from tests.chaos.storm import write_models

STRICT: Final = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('The system speaks first.') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROUNDS: Final = 4
PROMPT_WORDS: Final = 600
DEATH_NOTICED: Final = 2.0  # seconds
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 3, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
TOOL: Final = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}
FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
CHAT: Final = "/v1/chat/completions"
GREEDY: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    (CHAT, {"stream": True}),
    ("/v1/messages", {"stream": True}),
    (CHAT, {}),
    (CHAT, {"stream": True, "logprobs": True, "top_logprobs": 2, "n": 2, "max_tokens": 120}),
    (CHAT, {"stream": True, "response_format": FORMAT, "max_tokens": 120}),
    (CHAT, {"stream": True, "tools": [TOOL], "tool_choice": "required", "max_tokens": 120}),
    (CHAT, {"n": 2, "logprobs": True, "response_format": FORMAT, "max_tokens": 120}),
    (CHAT, {"stream": True}),
)
"""What the greedy clients ask for: the path, and the fields beside the question."""
KILLS: Final = 8
KILL_EVERY: Final = 14.0  # seconds
QUESTIONS: Final = [f"Tell me a story about {thing}." for thing in ("the sea", "bread", "bees")]
BLOCK: Final = 16  # tokens of the prefix cache; what is computed of the last one is computed again


async def a_real_model(folder: Path, ledger: Ledger) -> None:
    """The demo model, through the kernels for CPUs where they are built: prompts that are given up go on where they
    were, the system may speak late though the template forbids it, and a worker's death changes no answer."""
    from tests.chaos.phases import demo_model

    model = demo_model()
    if model is None:
        ledger.outcomes["left out: the demo model is not imported"] += 1
        return
    (folder / "strict.jinja").write_text(STRICT)
    flags = [str(model), "--served-model-name", "demo", "--wired-limit-gb", "1"]
    server = ServerProcess(folder, [*flags, "--chat-template-file", str(folder / "strict.jinja")])
    await server.start()
    draw = random.Random(5)
    try:
        async with httpx.AsyncClient(base_url=server.address, timeout=180) as http:
            for number in range(ROUNDS):
                await asyncio.gather(
                    given_up(http, ledger, draw, number), speaks_late(http, ledger, f"round {number}")
                )
                if number % 2:
                    for worker in server.workers():
                        worker.kill()
                    ledger.outcomes["workers killed"] += 1
                    await asyncio.sleep(DEATH_NOTICED)
    finally:
        await server.stop(signal.SIGTERM)


async def killed_worker(folder: Path, ledger: Ledger) -> None:
    """`kill -9` of the worker now and then beside greedy streams and whole answers: each text is the quiet one."""
    from tests.chaos.phases import demo_model

    models = write_models(folder)
    model = demo_model()
    name, flags = (models[0], ["alpha.script.json"]) if model is None else ("demo", [str(model)])
    server = ServerProcess(
        folder, [*flags, "--served-model-name", name, "--cache-dir", str(folder / "cache")]
    )
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.address, timeout=300) as http:
            forms = GREEDY if model else GREEDY[:3]  # a script knows neither scores nor grammars
            kinds = [(path, more | {"stream": False}) for path, more in forms]
            asked = [(words, number) for number in range(len(kinds)) for words in QUESTIONS]
            texts = await asyncio.gather(
                *(greedy(http, name, words, *kinds[number]) for words, number in asked)
            )
            quiet = dict(zip(asked, texts, strict=True))
            ended = asyncio.Event()
            asking = [
                asyncio.create_task(ask_greedily(http, ledger, name, quiet, number, ended))
                for number in range(len(forms))
            ]
            for _ in range(KILLS):
                await asyncio.sleep(KILL_EVERY)
                for worker in server.workers():
                    worker.kill()
                ledger.outcomes["workers killed"] += 1
            ended.set()
            await asyncio.gather(*asking)
    finally:
        await server.stop(signal.SIGTERM)


async def ask_greedily(
    http: httpx.AsyncClient,
    ledger: Ledger,
    model: str,
    quiet: dict[tuple[str, int], str],
    number: int,
    ended: asyncio.Event,
) -> None:
    draw = random.Random(number)
    while not ended.is_set():
        words = draw.choice(QUESTIONS)
        try:
            text = await greedy(http, model, words, *GREEDY[number])
        except (Refused, Broken, httpx.HTTPError) as error:
            ledger.violation(f"client {number}, {words!r}: {error!r}")
            continue
        ledger.answered(f"greedily by client {number}")
        if text != quiet[words, number]:
            ledger.violation(f"client {number}, {words!r}: {text!r} instead of {quiet[words, number]!r}")


async def greedy(http: httpx.AsyncClient, model: str, words: str, path: str, more: dict[str, Any]) -> str:
    """A greedy answer of some hundred tokens, whole or streamed: all that its choices say, call and score."""
    body = {"model": model, "messages": user(words), "max_tokens": 300, "temperature": 0} | more
    if path == "/v1/messages":
        if not body["stream"]:
            return str((await whole(http, path, body))["content"][0]["text"])
        return "".join([event.get("delta", {}).get("text") or "" async for event in events(http, path, body)])
    if not body.get("stream"):
        choices = [each | {"delta": each["message"]} for each in (await whole(http, path, body))["choices"]]
    else:
        choices = [each async for event in events(http, path, body) for each in event["choices"]]
    said: dict[int, list[str]] = {}
    for each in choices:
        delta, scored = each["delta"], each.get("logprobs") or {}
        told = said.setdefault(each["index"], ["", "", ""])
        told[0] += delta.get("content") or ""
        told[1] += "".join(call["function"].get("arguments") or "" for call in delta.get("tool_calls") or ())
        told[2] += "".join(token["token"] for token in scored.get("content") or ())
    return str(sorted(said.items()))


async def given_up(http: httpx.AsyncClient, ledger: Ledger, draw: random.Random, number: int) -> None:
    """A long prompt is left while it is computed, and asked again: the retry goes on from there, and has the words that
    a third one has."""
    words = " ".join(draw.choices(["ash", "oak", "elm", "yew", "fir"], k=PROMPT_WORDS))
    body: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"{number} {words}"}],
        "max_tokens": 8,
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    _, _, computed = await _streamed(http, body, most=2 + number)
    await asyncio.sleep(0.3)
    retry, cached, _ = await _streamed(http, body)
    again, found, _ = await _streamed(http, body)
    ledger.outcomes["prompts given up"] += 1
    ledger.outcomes["tokens that a retry found"] += cached
    if cached < computed - BLOCK:
        ledger.violation(f"{computed} tokens of a prompt were computed, its retry found {cached}")
    if retry != again or not retry:
        ledger.violation(f"a retry said {retry!r}, the next one {again!r}")
    if found < PROMPT_WORDS:
        ledger.violation(f"the third had only {found} tokens of its prompt cached")


async def speaks_late(http: httpx.AsyncClient, ledger: Ledger, topic: str) -> None:
    """A conversation in which the system says something new after each answer: all but the last turn is cached."""
    messages: list[dict[str, str]] = [{"role": "user", "content": f"Tell of {topic}. " + "Be exact. " * 60}]
    before = 0
    for turn in range(3):
        body = {"model": "demo", "system": "You are brief.", "messages": messages, "max_tokens": 8}
        answer = await whole(http, "/v1/messages", body)
        usage = answer["usage"]
        cached = usage["cache_read_input_tokens"]
        if turn and cached < 0.8 * before:
            ledger.violation(f"turn {turn} had {cached} tokens cached, the turn before was {before} long")
        before = cached + usage["input_tokens"] + (usage.get("cache_creation_input_tokens") or 0)
        messages += [
            {"role": "assistant", "content": answer["content"][0]["text"] or "."},
            {"role": "user", "content": f"Go on, {turn}."},
            {"role": "system", "content": f"Tokens used: {turn}000."},
        ]
        ledger.outcomes["turns with a late system message"] += 1


async def _streamed(
    http: httpx.AsyncClient, body: dict[str, Any], most: int | None = None
) -> tuple[str, int, int]:
    """The words of a stream, how many tokens of its prompt were cached, and how many are computed by the last report of
    progress. The client hangs up after the report number `most`. Raises `Broken`."""
    text, cached = "", 0
    reports: list[dict[str, int]] = []
    async with aclosing(events(http, "/v1/chat/completions", body | {"return_progress": True})) as stream:
        async for event in stream:
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if "prompt_progress" in event:
                reports.append(event["prompt_progress"])
                if len(reports) == most:
                    return text, 0, reports[-1]["processed"]
            if event.get("usage"):
                cached = (event["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)
    if not progressed(reports):
        raise Broken(f"reports of progress out of order: {reports}")
    return text, cached, reports[-1]["processed"]
