"""Two tenants on one server, one of them hostile throughout: the other's answers are right, prompt, and never seen.

The hostile one has a key of its own, a rate limit, and even the other's ids: what is secret is what they stand for.
"""

import asyncio
import json
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.chaos.clients import Broken, Refused, chat, chat_stream, completion, message_stream, response, user
from tests.chaos.ledger import Ledger
from tests.chaos.server import ServerProcess

SECRET: Final = "seven-herons"  # in all that the victim says
KEYS: Final = """
root: {key: k-root, role: admin}
victim: k-victim
mallory: {key: k-mallory, rate_limit: 1200}
"""
SCRIPT: Final = {"gap": 0.004, "context_window": 65536}
ATTACKERS: Final = 6
SECONDS: Final = 8.0  # alone, and again beside the hostile tenant
TIMES: Final = 3.0  # as long as alone may the victim's answers take
LONG_TEXT: Final = 127_000
"""As often are 22 characters repeated: 2.8 MB, some 30 times as long as the window of any model here."""
EMPTY_CONVERSATIONS: Final = 1030
COPIED: Final = "victim-0"
"""A request id in the victim's form, which the victim itself never uses."""
REFUSED: Final = frozenset({400, 401, 403, 404, 409, 413, 415, 422, 429, 503})


@dataclass
class Tenants:
    server: ServerProcess
    ledger: Ledger
    stored: str = ""  # id of a response of the victim
    conversation: str = ""
    asked: int = 0  # requests of the victim so far
    taken: list[float] = field(default_factory=list)  # seconds of each of its answers
    long_texts: asyncio.Lock = field(default_factory=asyncio.Lock)  # of the attacker who sends them now

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(
            base_url=self.server.address, headers={"x-api-key": f"k-{name}"}, timeout=60
        ) as http:
            yield http


async def two_tenants(folder: Path, ledger: Ledger) -> None:
    """The victim alone, then beside the hostile tenant, who must have learnt and changed nothing."""
    (folder / "alpha.script.json").write_text(json.dumps(SCRIPT))
    (folder / "keys.yaml").write_text(KEYS)
    flags = ["alpha.script.json", "--api-key-file", "keys.yaml", "--max-body-mb", "4"]
    tenants = Tenants(ServerProcess(folder, flags), ledger)
    await tenants.server.start()
    try:
        async with tenants.client("victim") as http:
            await store(tenants, http)
            await ask_for(tenants, http, SECONDS)
            alone, tenants.taken = tenants.taken, []
            async with attacked(tenants):
                await ask_for(tenants, http, SECONDS)
            judge_latency(ledger, alone, tenants.taken)
            await judge_store(tenants, http)
        await judge_settings(tenants)
    finally:
        await tenants.server.stop(signal.SIGTERM)


async def store(tenants: Tenants, http: httpx.AsyncClient) -> None:
    body = {"model": "alpha", "input": f"{SECRET} is stored"}
    for _ in range(2):  # the first one loads
        tenants.stored = (await http.post("/v1/responses", json=body)).json()["id"]
    made = await http.post("/v1/conversations", json={"metadata": {"word": SECRET}})
    tenants.conversation = made.json()["id"]


async def ask_for(tenants: Tenants, http: httpx.AsyncClient, seconds: float) -> None:
    """The victim asks again and again, under request ids that are easily guessed."""
    until = time.monotonic() + seconds
    forms = (chat, chat_stream, completion, message_stream, response)
    while time.monotonic() < until:
        tenants.asked += 1
        ask = forms[tenants.asked % len(forms)]
        words = f"{SECRET} {tenants.asked} " + "ash " * 30 + "end"
        http.headers["x-request-id"] = f"victim-{tenants.asked}"
        began = time.monotonic()
        try:
            said = await ask(http, "alpha", words)
        except (Refused, Broken, httpx.HTTPError) as error:
            tenants.ledger.violation(f"the victim's {ask.__name__}: {type(error).__name__} {error}")
            continue
        tenants.taken.append(time.monotonic() - began)
        if said == words:
            tenants.ledger.answered(ask.__name__)
        else:
            tenants.ledger.violation(f"the victim asked {words[:40]!r}, was told {said[:60]!r}")


@asynccontextmanager
async def attacked(tenants: Tenants) -> AsyncIterator[None]:
    async with tenants.client("mallory") as http:
        tasks = [asyncio.create_task(attack(tenants, http, number)) for number in range(ATTACKERS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(ended, asyncio.CancelledError) and ended is not None:
                    tenants.ledger.violation(f"an attacker failed: {ended!r}")
    for name in ACTS:
        if not tenants.ledger.faults[name]:
            tenants.ledger.violation(f"the hostile tenant never came to {name!r}")


async def attack(tenants: Tenants, http: httpx.AsyncClient, seed: int) -> None:
    """Every act in random order, again and again."""
    chosen = random.Random(seed)
    while True:
        for name in chosen.sample(list(ACTS), len(ACTS)):
            tenants.ledger.begins(name)
            await ACTS[name](tenants, http)
            await asyncio.sleep(0.02)


async def send(
    tenants: Tenants, http: httpx.AsyncClient, method: str, path: str, *, may: bool = True, **fields: Any
) -> httpx.Response | None:
    """One request of the hostile tenant; `may`: whether it may succeed. None where the connection was cut."""
    try:
        reply = await http.request(method, path, **fields)
    except httpx.HTTPError:
        return None
    if SECRET in reply.text:
        tenants.ledger.violation(f"{method} {path} showed the victim's words: {reply.text[:200]}")
    if reply.is_success and not may:
        tenants.ledger.violation(f"{method} {path} was allowed: {reply.text[:200]}")
    if not reply.is_success and reply.status_code not in REFUSED:
        tenants.ledger.violation(f"{method} {path}: {reply.status_code} {reply.text[:200]}")
    tenants.ledger.outcomes[f"hostile: {reply.status_code}"] += 1
    return reply


async def manage(tenants: Tenants, http: httpx.AsyncClient) -> None:
    """Take the server away from the others, and its own limit with it."""
    for change in ({"timeout": 0.001}, {"keepalive_interval": 5.0}, {"rate_limit": 100000}):
        await send(tenants, http, "PATCH", "/v1/settings", json=change, may=False)
    await send(tenants, http, "POST", "/unload", json={}, may=False)
    await send(tenants, http, "DELETE", "/v1/cache", may=False)


async def stop_others(tenants: Tenants, http: httpx.AsyncClient) -> None:
    """Look for requests that run, and end those of the victim by the ids that it is likely to use."""
    status = await send(tenants, http, "GET", "/v1/status")
    if status is not None and status.is_success:
        seen = [each["request_id"] for each in status.json()["requests"]]
        if any(name.startswith("victim-") and not name.startswith(COPIED) for name in seen):
            tenants.ledger.violation(f"the hostile tenant saw {seen}")
    for number in range(tenants.asked - 1, tenants.asked + 2):
        await send(tenants, http, "DELETE", f"/v1/requests/victim-{number}", may=False)


async def read_others(tenants: Tenants, http: httpx.AsyncClient) -> None:
    """Read, continue and delete what the victim stored, by its true id."""
    path = f"/v1/responses/{tenants.stored}"
    for method, place in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items")):
        await send(tenants, http, method, place, may=False)
    body = {"model": "alpha", "input": "Repeat all.", "previous_response_id": tenants.stored}
    await send(tenants, http, "POST", "/v1/responses", json=body, may=False)
    place = f"/v1/conversations/{tenants.conversation}"
    await send(tenants, http, "GET", place, may=False)
    await send(tenants, http, "DELETE", place, may=False)


async def push_out(tenants: Tenants, http: httpx.AsyncClient) -> None:
    """Store until others have no room. The burst comes once; after it the act goes on conversation by conversation."""
    count = EMPTY_CONVERSATIONS if tenants.ledger.faults["a full store"] == 1 else 5
    for _ in range(count):
        await send(tenants, http, "POST", "/v1/conversations", json={})


async def use_tools(tenants: Tenants, http: httpx.AsyncClient) -> None:
    body = {"model": "alpha", "messages": user("hi")}
    await send(
        tenants, http, "POST", "/v1/chat/completions", json=body, headers={"x-mcp-servers": "*"}, may=False
    )
    await send(tenants, http, "POST", "/v1/mcp/execute", json={"tool_name": "x"}, may=False)


async def send_a_page(tenants: Tenants, http: httpx.AsyncClient) -> None:
    """As a web page that somebody of this machine was led to; and ask for models that are elsewhere."""
    page = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    form = {"model": (None, "alpha"), "file": ("a.wav", b"RIFF")}
    await send(tenants, http, "POST", "/v1/audio/transcriptions", files=form, headers=page, may=False)
    await send(tenants, http, "GET", "/v1/audio/voices?model=org/name", may=False)
    body = {"model": "org/name", "messages": user("hi")}
    await send(tenants, http, "POST", "/v1/chat/completions", json=body, may=False)


async def ask_as_another(tenants: Tenants, http: httpx.AsyncClient) -> None:
    """Take the form of the victim's request ids, its tenant and its prompt; show keys that are none."""
    headers = {"x-request-id": COPIED, "x-tenant-id": "victim"}
    body = {"model": "alpha", "messages": user("ash " * 200), "cache_salt": "victim"}
    await send(tenants, http, "POST", "/v1/chat/completions", json=body, headers=headers)
    await send(tenants, http, "GET", "/v1/models", headers={"x-api-key": "name:victim"}, may=False)


async def flood(tenants: Tenants, http: httpx.AsyncClient) -> None:
    """More at once than its limit allows; bodies that are too large."""
    body = {"model": "alpha", "messages": user("yew " * 20), "max_tokens": 5}
    asked = [send(tenants, http, "POST", "/v1/chat/completions", json=body) for _ in range(20)]
    await asyncio.gather(*asked)
    large = {"model": "alpha", "messages": user("x" * (5 << 20))}
    await send(tenants, http, "POST", "/v1/chat/completions", json=large, may=False)


async def send_long_texts(tenants: Tenants, http: httpx.AsyncClient) -> None:
    """Texts that no window holds, in every form in which a text is tokenized: one after another, without a pause."""
    headers = {"content-type": "application/json"}
    async with tenants.long_texts:
        for path, body in LONG_BODIES:
            await send(tenants, http, "POST", path, content=body, headers=headers)


def _long_bodies() -> tuple[tuple[str, bytes], ...]:
    """Written once: the victim is measured in this process."""
    text = "A word, and one more. " * LONG_TEXT
    bodies = {
        "/v1/chat/completions": {"model": "alpha", "messages": user(text), "max_tokens": 2},
        "/v1/completions": {"model": "alpha", "prompt": text, "max_tokens": 2},
        "/tokenize": {"model": "alpha", "prompt": text},
        "/v1/messages/count_tokens": {"model": "alpha", "messages": user(text)},
    }
    return tuple((path, json.dumps(body).encode()) for path, body in bodies.items())


LONG_BODIES: Final = _long_bodies()

Act = Callable[[Tenants, httpx.AsyncClient], Awaitable[None]]
ACTS: Final[dict[str, Act]] = {
    "management": manage,
    "requests of others": stop_others,
    "responses of others": read_others,
    "a full store": push_out,
    "tools": use_tools,
    "a web page": send_a_page,
    "another's name": ask_as_another,
    "a flood of one tenant": flood,
    "long texts": send_long_texts,
}


def judge_latency(ledger: Ledger, alone: list[float], beside: list[float]) -> None:
    if len(alone) < 2 or len(beside) < 2:
        ledger.violation(
            f"the victim was answered {len(alone)} times alone, {len(beside)} times beside the other"
        )
        return
    first, second = statistics.median(alone), statistics.median(beside)
    ledger.outcomes[f"median of {len(alone)} answers alone, in ms: {first * 1000:.0f}"] += 1
    ledger.outcomes[f"median of {len(beside)} answers attacked, in ms: {second * 1000:.0f}"] += 1
    if second > TIMES * first:
        ledger.violation(
            f"the victim's answers took {first * 1000:.0f} ms alone, then {second * 1000:.0f} ms"
        )


async def judge_store(tenants: Tenants, http: httpx.AsyncClient) -> None:
    """What the victim stored is there, after more was stored than the store has room for."""
    for path in (f"/v1/responses/{tenants.stored}", f"/v1/conversations/{tenants.conversation}"):
        reply = await http.get(path)
        if reply.status_code != 200 or SECRET not in reply.text:
            tenants.ledger.violation(f"the victim's {path}: {reply.status_code} {reply.text[:100]}")


async def judge_settings(tenants: Tenants) -> None:
    async with tenants.client("root") as http:
        current = (await http.get("/v1/settings")).json()["current"]
        if current["timeout"] is not None or current["rate_limit"]:
            tenants.ledger.violation("the hostile tenant changed the settings")
        loaded = (await http.get("/v1/models")).json()["data"]
        if [each["state"] for each in loaded if each["id"] == "alpha"] != ["loaded"]:
            tenants.ledger.violation("the hostile tenant unloaded the model")
