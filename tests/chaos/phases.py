"""Faults that need a server of their own: a full disk, hardly any memory, a damaged cache on disk."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tests.chaos.clients import FORMS
from tests.chaos.groups import ranks, ranks_in_a_cluster, replicas_in_a_cluster
from tests.chaos.lasting import a_real_model, killed_worker
from tests.chaos.ledger import Ledger
from tests.chaos.limits import past_every_limit
from tests.chaos.neighbours import NEIGHBOURS, batch
from tests.chaos.server import ServerProcess
from tests.chaos.storm import calm, clients, write_models
from tests.chaos.tenants import two_tenants

LOAD_SECONDS: Final = 2.5


async def full_disk(folder: Path, ledger: Ledger) -> None:
    """Nothing can be written any more: log file, stored responses. Answers go on, and batches wait."""
    models = write_models(folder)
    flags = [
        "alpha.script.json",
        "beta.script.json",
        "--log-file",
        str(folder / "pippin.log"),
        "--log-level",
        "debug",
    ]
    flags += ["--response-store", str(folder / "responses.db")]
    server = ServerProcess(folder, flags, file_limit=64 << 10)
    await under_load(server, models, ledger)
    if (model := demo_model()) is None:
        ledger.outcomes["without the cache on disk: the demo model is not imported"] += 1
        return
    flags = [str(model), "--cache-dir", str(folder / "cache"), "--served-model-name", "demo"]
    apart = folder / "apart"  # whose log is empty
    apart.mkdir()
    answers = [await ask_alone(ServerProcess(apart, flags, file_limit=limit)) for limit in (64 << 10, None)]
    ledger.outcomes["answers with a cache on a full disk"] += 1
    if len(set(answers)) != 1 or not answers[0]:
        ledger.violation(f"answers differ with a full disk: {answers}")


async def hardly_any_memory(folder: Path, ledger: Ledger) -> None:
    """Room for one model of two: they take turns, or the client is told to come again."""
    models = write_models(folder)
    flags = ["alpha.script.json", "beta.script.json", "--max-models", "1", "--contention-wait", "5"]
    await under_load(ServerProcess(folder, flags), models, ledger)
    flags = ["alpha.script.json", "--memory-budget-gb", "0.000001"]
    server = ServerProcess(folder, flags)
    await server.start()
    body = {"model": "alpha", "messages": [{"role": "user", "content": "x"}]}
    answer = await server.ask("/v1/chat/completions", "POST", body)
    if not answer.get("error", {}).get("message"):
        ledger.violation(f"no budget: {answer}")
    ledger.outcomes["refused without a budget"] += 1
    await server.stop(signal.SIGTERM)


async def damaged_cache(folder: Path, ledger: Ledger) -> None:
    """The demo model's prefix cache on disk is damaged between two runs: the answers stay the same."""
    model = demo_model()
    if model is None:
        ledger.outcomes["left out: the demo model is not imported"] += 1
        return
    flags = [str(model), "--cache-dir", str(folder / "cache"), "--served-model-name", "demo"]
    answers: list[str] = []
    for damage in (None, None, *DAMAGES):
        files = [path for path in (folder / "cache").rglob("*") if path.is_file()]
        if damage is not None:
            for path in files:
                damage(path)
        answers.append(await ask_alone(ServerProcess(folder, flags)))
        ledger.outcomes["answers"] += 1
        ledger.outcomes["cache files"] = max(ledger.outcomes["cache files"], len(files))
    if len(set(answers)) != 1 or not answers[0]:
        ledger.violation(f"answers differ with a damaged cache: {answers}")


async def ask_demo(server: ServerProcess) -> str:
    text = "Name the months of the year, and say something about each of them. " * 12
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 12,
        "temperature": 0,
    }
    answer = await server.ask("/v1/chat/completions", "POST", body)
    return str(answer["choices"][0]["message"]["content"]) if "choices" in answer else f"{answer}"


async def ask_alone(server: ServerProcess) -> str:
    """The demo model's answer from a server that is started for it and stopped again."""
    await server.start()
    try:
        return await ask_demo(server)
    finally:
        await server.stop(signal.SIGTERM)


def demo_model() -> Path | None:
    found = sorted((Path.home() / ".cache/pippin/models").glob("smollm2*"))
    return found[0] if found else None


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(20):
        data[random.randrange(len(data))] ^= 0x55
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: Final = (flip, cut, empty)
Phase = Callable[[Path, Ledger], Awaitable[None]]
PHASES: Final[dict[str, Phase]] = {
    "a full disk": full_disk,
    "hardly any memory": hardly_any_memory,
    "past every limit": past_every_limit,
    "a damaged cache": damaged_cache,
    "a real model": a_real_model,
    "killed again and again": killed_worker,
    "two tenants": two_tenants,
}
GROUPS: Final = {
    "ranks": ranks,
    "replicas in a cluster": replicas_in_a_cluster,
    "ranks in a cluster": ranks_in_a_cluster,
}


async def under_load(server: ServerProcess, models: list[str], ledger: Ledger) -> None:
    """Seconds of every form but batches, which wait for room longer than that."""
    forms = [form for form in (*FORMS, *NEIGHBOURS) if form is not batch]
    await server.start()
    async with clients(server, models, ledger, 7, forms):
        await asyncio.sleep(LOAD_SECONDS)
    await calm(server, models, ledger)
    left = await server.stop(signal.SIGTERM)
    if left:
        ledger.violation(f"workers outlived the server: {left}")


async def phase(name: str, folder: Path) -> Ledger:
    ledger = Ledger()
    await (PHASES | GROUPS)[name](folder, ledger)
    return ledger
