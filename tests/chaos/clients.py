"""Clients that know what they must be told: each asks for words of its own, in every dialect, streamed and whole."""

import asyncio
import json
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import httpx

from tests.chaos.ledger import Ledger

SECONDS = 60.0  # after which a request counts as unanswered
EXCUSED = frozenset({408, 424, 429, 499, 500, 503, 529})
"""Statuses that faults excuse; 500 only with the kind that says that a worker died."""
DIED = ("worker", "died", "ended", "fail", "killed", "lost")


Form = Callable[[httpx.AsyncClient, str, str], Awaitable[str]]
"""One way to ask a model for words; what it said."""


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Broken(Exception):
    """The answer is no answer: the text says how."""


class Client:
    def __init__(
        self,
        address: str,
        models: list[str],
        ledger: Ledger,
        seed: int,
        forms: Sequence[Form],
        seconds: float = SECONDS,
    ) -> None:
        self._forms = forms
        self._seconds = seconds
        self._address, self._models, self._ledger = address, models, ledger
        self._random = random.Random(seed)
        self._seed, self._count = seed, 0
        self.done = asyncio.Event()

    async def run(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=4)
        async with httpx.AsyncClient(base_url=self._address, timeout=self._seconds, limits=limits) as http:
            while not self.done.is_set():
                await self._once(http)
                await asyncio.sleep(self._random.expovariate(20))

    async def _once(self, http: httpx.AsyncClient) -> None:
        self._count += 1
        words = f"client {self._seed} asks {self._count} " + " ".join(
            self._random.choices(
                ["ash", "oak", "elm", "yew", "fir", "bay"], k=self._random.choice([3, 30, 120])
            )
        )
        model = self._random.choice(self._models)
        ask = self._random.choice(self._forms)
        began = time.monotonic()
        name = ask.__name__
        try:
            said = await ask(http, model, words)
        except Refused as error:
            self._judge_refusal(error, name)
            await asyncio.sleep(0.2)
        except Broken as error:
            self._unless_down(began, f"{name}: {error}")
        except httpx.TimeoutException:
            self._unless_down(began, f"{name}: no answer within {self._seconds:g} s")
        except (httpx.HTTPError, OSError) as error:
            self._unless_down(began, f"{name}: {type(error).__name__} {error}")
        else:
            if said == words:
                self._ledger.answered(name)
            else:
                self._ledger.violation(f"{name}: asked {words[:60]!r}, was told {said[:60]!r}")

    def _judge_refusal(self, error: Refused, name: str) -> None:
        text = str(error)
        plain = error.status in EXCUSED and bool(text)
        if error.status == 500:
            plain = plain and any(word in text.lower() for word in DIED)
        if plain:
            self._ledger.refused(error.status, name)
        else:
            self._ledger.violation(f"{name}: {error.status} {text[:200]}")

    def _unless_down(self, began: float, text: str) -> None:
        if self._ledger.was_down(began):
            self._ledger.outcomes["lost with the server"] += 1
        else:
            self._ledger.violation(text)


def refusal(reply: httpx.Response) -> Refused:
    return refused(reply.status_code, reply.content)


def refused(status: int, body: bytes) -> Refused:
    """What an error says, in the shape of any of the APIs."""
    try:
        error = json.loads(body)["error"]
        message = error if isinstance(error, str) else error["message"]
    except (ValueError, KeyError, TypeError):
        raise Broken(f"{status} without an error object: {body[:100]!r}") from None
    return Refused(status, message)


async def whole(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    reply = await http.post(path, json=body)
    if reply.status_code != 200:
        raise refusal(reply)
    return json.loads(reply.content)


async def events(
    http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """The stream's objects; an error in it is raised as a refusal."""
    async with http.stream("POST", path, json=body | {"stream": True}) as reply:
        if reply.status_code != 200:
            await reply.aread()
            raise refusal(reply)
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                error = event.get("error") or (event.get("response") or {}).get("error")
                if error:  # a server that ends says so within the stream
                    kind = f"{error.get('type')} {error.get('code')}"
                    status = 503 if "overloaded" in kind else 500
                    raise Refused(status, error["message"])
                yield event


def user(words: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": words}]


async def chat(http: httpx.AsyncClient, model: str, words: str) -> str:
    answer = await whole(http, "/v1/chat/completions", {"model": model, "messages": user(words)})
    return str(answer["choices"][0]["message"]["content"])


async def chat_stream(http: httpx.AsyncClient, model: str, words: str) -> str:
    text, reason = "", None
    async for event in events(http, "/v1/chat/completions", {"model": model, "messages": user(words)}):
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
    if reason is None:
        raise Broken("the stream ended without a reason")
    return text


async def completion(http: httpx.AsyncClient, model: str, words: str) -> str:
    answer = await whole(http, "/v1/completions", {"model": model, "prompt": words, "max_tokens": 4000})
    return str(answer["choices"][0]["text"])


async def message_stream(http: httpx.AsyncClient, model: str, words: str) -> str:
    text, ended = "", False
    body = {"model": model, "messages": user(words), "max_tokens": 4000}
    async for event in events(http, "/v1/messages", body):
        text += event.get("delta", {}).get("text", "")
        ended = event["type"] == "message_stop"
    if not ended:
        raise Broken("the stream ended without message_stop")
    return text


async def response(http: httpx.AsyncClient, model: str, words: str) -> str:
    answer = await whole(http, "/v1/responses", {"model": model, "input": words})
    return str(answer["output"][0]["content"][0]["text"])


async def response_stream(http: httpx.AsyncClient, model: str, words: str) -> str:
    text, ended = "", False
    async for event in events(http, "/v1/responses", {"model": model, "input": words, "store": False}):
        text += event["delta"] if event["type"] == "response.output_text.delta" else ""
        ended = event["type"] == "response.completed"
    if not ended:
        raise Broken("the stream ended without response.completed")
    return text


async def chat_progress(http: httpx.AsyncClient, model: str, words: str) -> str:
    """As `chat_stream`, told how far the prompt is."""
    text, reason, reports = "", None, []
    body = {"model": model, "messages": user(words), "return_progress": True}
    async for event in events(http, "/v1/chat/completions", body):
        if "prompt_progress" in event:
            reports.append(event["prompt_progress"])
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
    if reason is None:
        raise Broken("the stream ended without a reason")
    if not progressed(reports):
        raise Broken(f"reports of progress out of order: {reports}")
    return text


def progressed(reports: list[dict[str, int]]) -> bool:
    """Whether reports come as llama.cpp's do: what is cached first, ever more of the same, all of it last."""
    done = [report["processed"] for report in reports]
    return (
        bool(reports)
        and len({(report["total"], report["cache"]) for report in reports}) == 1
        and done[0] == reports[0]["cache"]
        and done[-1] == reports[0]["total"]
        and all(before < after for before, after in pairwise(done))
    )


async def message_late(http: httpx.AsyncClient, model: str, words: str) -> str:
    """A turn of an agent: the system speaks again after the first answer."""
    turns = [*user("before"), {"role": "assistant", "content": "before"}]
    turns += [{"role": "system", "content": "Tokens used: 4711."}, *user(words)]
    answer = await whole(http, "/v1/messages", {"model": model, "messages": turns, "max_tokens": 4000})
    return str(answer["content"][0]["text"])


FORMS: Final[tuple[Form, ...]] = (
    chat,
    chat_stream,
    chat_progress,
    completion,
    message_stream,
    message_late,
    response,
    response_stream,
)
