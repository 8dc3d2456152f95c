"""One model in several processes, and machines of a cluster, that are lost under load: no answer may be wrong."""

import asyncio
import contextlib
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from tests.chaos.clients import FORMS, Broken, Form, Refused, events, whole
from tests.chaos.ledger import Ledger
from tests.chaos.server import ServerProcess
from tests.chaos.storm import clients, write_models
from tests.engines.tiny_models import tiny_model
from tests.runtime.cluster.nodes import end, free_port, joined, nodes, workers

TOKENS: Final = 24
MARGIN: Final = 0.02
"""Between the logprobs of the two likeliest tokens: several ranks add up in another order than one process does."""
CLIENTS: Final = 6
WITHIN: Final = 240.0  # seconds for an answer, with the start of a group in between
REPLICA: Final = 150_000_000  # bytes
PEACE: Final = 2.0  # seconds of answers before the next loss


class Known:
    """Prompts whose greedy answers are known."""

    def __init__(self, answers: dict[str, str]) -> None:
        self._answers = answers

    @classmethod
    async def learnt(cls, server: ServerProcess) -> "Known":
        """From a server that computes the model in one process, where no token is a close call."""
        answers = {}
        for number in range(60):
            prompt = f"{number} " + "ash oak elm yew fir bay"[number % 7 :] * (1 + number % 5)
            found = await server.ask("/v1/completions", "POST", {**greedy(prompt), "logprobs": 2})
            [choice] = found["choices"]
            tops = [sorted(each.values()) for each in choice["logprobs"]["top_logprobs"]]
            if all(len(top) > 1 and top[-1] - top[-2] > MARGIN for top in tops):
                answers[prompt] = choice["text"]
        assert len(answers) >= 5, answers
        return cls(answers)

    @property
    def forms(self) -> list[Form]:
        return [self.asked, self.streamed, self.given_up]

    def prompt(self, words: str) -> tuple[str, str]:
        return random.Random(words).choice(sorted(self._answers.items()))

    async def asked(self, http: httpx.AsyncClient, model: str, words: str) -> str:
        prompt, expected = self.prompt(words)
        answer = await whole(http, "/v1/completions", {"model": model, **greedy(prompt)})
        return judged(words, answer["choices"][0]["text"], expected)

    async def streamed(self, http: httpx.AsyncClient, model: str, words: str) -> str:
        prompt, expected = self.prompt(words)
        said = ""
        try:
            async for event in events(http, "/v1/completions", {"model": model, **greedy(prompt)}):
                said += "".join(choice["text"] for choice in event["choices"])
        except Refused:
            if not expected.startswith(said):
                raise Broken(f"before its error it said {said!r} where {expected!r} is right") from None
            raise
        return judged(words, said, expected)

    async def given_up(self, http: httpx.AsyncClient, model: str, words: str) -> str:
        """Leave after the first words."""
        prompt, expected = self.prompt(words)
        said = ""
        async with aclosing(events(http, "/v1/completions", {"model": model, **greedy(prompt)})) as stream:
            async for event in stream:
                said += "".join(choice["text"] for choice in event["choices"])
                if said:
                    break
        return words if expected.startswith(said) else said


def greedy(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


def judged(words: str, said: str, expected: str) -> str:
    return words if said == expected else f"{said!r} in place of {expected!r}"


async def ranks(folder: Path, ledger: Ledger) -> None:
    """A group on this machine, whose ranks are killed and stopped under load."""
    model, known = await tiny(folder)
    server = ServerProcess(folder, [str(model), "--ranks", "2", "--drain-timeout", "2"])
    await server.start()
    async with clients(server, ["tiny"], ledger, 3, known.forms, count=CLIENTS, seconds=WITHIN):
        for number, act in enumerate((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL)):
            await answered(server, known, ledger)
            await asyncio.sleep(PEACE)
            found = [each for each in server.workers() if "pippin.worker" in cmdline(each)]
            ledger.begins(f"a rank is sent {act.name}")
            # Rank 0 is the one that was started first.
            sorted(found, key=lambda each: each.create_time())[number % len(found)].send_signal(act)
    await answered(server, known, ledger)
    await stopped(server, ledger)


async def replicas_in_a_cluster(folder: Path, ledger: Ledger) -> None:
    """Replicas on the nodes of a cluster: workers, actors, bridges and a node are killed under load."""
    if find_spec("ray") is None:
        ledger.outcomes["left out: the extra `cluster` is not installed"] += 1
        return
    names = write_models(folder)
    with cluster(folder) as nodes_:
        flags = [f"{name}.script.json" for name in names]
        flags += ["--cluster", nodes_.address, "--replicas", "2", "--memory-bytes", str(REPLICA)]
        server = ServerProcess(folder, [*flags, "--drain-timeout", "2"])
        await server.start()
        async with clients(server, names, ledger, 5, FORMS, count=CLIENTS, seconds=WITHIN):
            for victims in (nodes_.workers, nodes_.actors, nodes_.bridges, nodes_.node):
                await echoed(server, names, ledger)
                await asyncio.sleep(PEACE)
                await nodes_.loses(victims, ledger)
        await echoed(server, names, ledger)
        await stopped(server, ledger)
        await nobody_left(folder, ledger)


async def ranks_in_a_cluster(folder: Path, ledger: Ledger) -> None:
    """A group over two nodes of a cluster: ranks, actors, bridges, who holds its places, and a node are killed."""
    if find_spec("ray") is None:
        ledger.outcomes["left out: the extra `cluster` is not installed"] += 1
        return
    model, known = await tiny(folder)
    with cluster(folder) as nodes_:
        flags = [str(model), "--cluster", nodes_.address, "--ranks", "2", "--drain-timeout", "2"]
        server = ServerProcess(folder, flags)
        await server.start()
        async with clients(server, ["tiny"], ledger, 9, known.forms, count=CLIENTS, seconds=WITHIN):
            for victims in (nodes_.workers, nodes_.actors, nodes_.bridges, nodes_.holders, nodes_.node):
                await answered(server, known, ledger)
                await asyncio.sleep(PEACE)
                await nodes_.loses(victims, ledger)
        await answered(server, known, ledger)
        await stopped(server, ledger)
        await nobody_left(folder, ledger)


class Nodes:
    """Two nodes of a cluster on this machine, of which the second may be lost, and what runs there."""

    def __init__(
        self, folder: Path, address: str, first: subprocess.Popen[bytes], join: Callable[[], Any]
    ) -> None:
        self.address = address
        self._folder = folder
        self._first = first
        self._join = join
        self._second = join()

    def workers(self) -> list[psutil.Process]:
        return workers(self._folder)

    def actors(self) -> list[psutil.Process]:
        below = [each for node in (self._first, self._second) for each in descendants(node.pid)]
        return [each for each in below if cmdline(each).startswith("ray::Host")]

    def bridges(self) -> list[psutil.Process]:
        return self._of_server("pippin.runtime.cluster.bridge")

    def holders(self) -> list[psutil.Process]:
        return self._of_server("pippin.runtime.cluster.placement")

    def node(self) -> list[psutil.Process]:
        return [psutil.Process(self._second.pid)]

    async def loses(self, victims: Callable[[], list[psutil.Process]], ledger: Ledger) -> None:
        """Kill one of these; a node comes back."""
        name = victims.__name__
        found = victims()
        if not found:
            ledger.violation(f"{name}: there is nothing to kill")
            return
        ledger.begins(f"one of the {name} is killed")
        if victims == self.node:
            end(self._second)
            self._second = await asyncio.to_thread(self._join)
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            random.choice(found).kill()

    def _of_server(self, module: str) -> list[psutil.Process]:
        home = str(self._folder)
        return [
            each
            for each in psutil.process_iter(["cmdline", "environ"])
            if module in (each.info["cmdline"] or []) and (each.info["environ"] or {}).get("HOME") == home
        ]


@contextmanager
def cluster(folder: Path) -> Iterator[Nodes]:
    address = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as held:
        first = held.enter_context(
            joined(folder, "--host", "127.0.0.1", "--port", address.rpartition(":")[2])
        )
        until(lambda: nodes(folder, address) == 1)
        found = Nodes(folder, address, first, lambda: held.enter_context(joined(folder, address)))
        until(lambda: nodes(folder, address) == 2)
        yield found


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def cmdline(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


async def tiny(folder: Path) -> tuple[Path, Known]:
    """A tiny random model, and what it says in one process."""
    model = tiny_model("llama", folder / "models" / "tiny", num_key_value_heads=4)
    alone = folder / "alone"
    alone.mkdir()
    async with serving(ServerProcess(alone, [str(model), "--cpu-kernels", "off"])) as server:
        return model, await Known.learnt(server)


@asynccontextmanager
async def serving(server: ServerProcess) -> AsyncIterator[ServerProcess]:
    await server.start()
    try:
        yield server
    finally:
        await server.stop(signal.SIGTERM)


async def answered(server: ServerProcess, known: Known, ledger: Ledger) -> None:
    """Wait until the model answers, and rightly."""
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        async with httpx.AsyncClient(base_url=server.address, timeout=WITHIN) as http:
            try:
                said = await known.asked(http, "tiny", "calm")
            except Refused:
                await asyncio.sleep(0.5)  # it is just lost, or was so often that it pauses
                continue
        if said != "calm":
            ledger.violation(f"in the calm it said {said}")
        return
    ledger.violation(f"no answer in the calm within {WITHIN:g} s")


async def echoed(server: ServerProcess, models: list[str], ledger: Ledger) -> None:
    for model in models:
        deadline = time.monotonic() + WITHIN
        body = {"model": model, "messages": [{"role": "user", "content": "calm"}]}
        while "choices" not in (answer := await server.ask("/v1/chat/completions", "POST", body)):
            if time.monotonic() > deadline:
                ledger.violation(f"{model} does not answer in the calm: {answer}")
                break
            await asyncio.sleep(0.5)


async def stopped(server: ServerProcess, ledger: Ledger) -> None:
    if left := await server.stop(signal.SIGTERM):
        ledger.violation(f"processes outlived the server: {left}")


async def nobody_left(folder: Path, ledger: Ledger) -> None:
    """Ray ends what it ran for a server that is gone."""
    deadline = time.monotonic() + 30
    while left := workers(folder):
        if time.monotonic() > deadline:
            ledger.violation(f"workers outlived the server on other machines: {left}")
            return
        await asyncio.sleep(0.2)
