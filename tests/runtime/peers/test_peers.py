"""A service whose models run on other servers: real ones that are killed, and made-up ones that refuse."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest

from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError
from pippin.core.events import Failed
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens
from pippin.runtime.peers import peers as module
from pippin.runtime.peers.peers import Peer, PeerLauncher, Peers
from pippin.runtime.peers.source import SourceWithPeers
from pippin.runtime.pool.pool import Pool
from pippin.runtime.replicas.processes import ReplicaLauncher
from pippin.runtime.workers.supervisor import WorkerProcess
from pippin.service import Service
from tests.cli.serving import Serving, Terminal
from tests.service.doubles import StaticCatalog, answer, asked

SCRIPT = {"rules": [{"when": {"user": "slow"}, "say": "one two three four five six", "gap": 0.1}]}
LISTED = {"object": "list", "data": [{"id": "m", "object": "model"}]}
ANSWER = (
    b'data: {"choices":[{"index":0,"delta":{"content":"hello"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)


@contextmanager
def peer_servers(folder: Path, count: int) -> Iterator[list[Serving]]:
    if count == 0:
        yield []
        return
    home = folder / f"peer{count}"
    home.mkdir()
    (home / "m.script.json").write_text(json.dumps(SCRIPT))
    with Terminal(home).serving("m.script.json") as serving, peer_servers(folder, count - 1) as others:
        serving.wait_for(r"(is ready) after")
        yield [serving, *others]


@asynccontextmanager
async def front(*peers: Peer) -> AsyncIterator[Service]:
    options = ServerOptions()
    together = Peers(list(peers))
    source = SourceWithPeers(StaticCatalog(), together, options)
    launcher = PeerLauncher(together, ReplicaLauncher(WorkerProcess.launch))
    service = Service(
        options, source, Pool(options, source, lambda info, its: 1, 1, launcher), None, together
    )
    await service.meet_peers()
    try:
        yield service
    finally:
        await service.close(0.0)


def made_up(reply: Callable[[httpx.Request], httpx.Response], name: str = "made-up") -> Peer:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=LISTED) if request.url.path == "/v1/models" else reply(request)

    return Peer(f"http://{name}:1", "secret", httpx.MockTransport(handle))


def test_a_killed_peer_costs_no_answer_that_was_not_begun(tmp_path: Path) -> None:
    async def play(servers: list[Serving]) -> None:
        peers = [Peer(each.address, None) for each in servers]
        async with front(*peers) as service:
            assert [info.id for info in service.models()] == ["m"]
            assert peers[0].is_pippin
            assert await answer(service, "hello", "r") == "hello"
            whole = [asyncio.create_task(answer(service, f"slow {n}", f"r{n}")) for n in range(8)]
            begun = await service.start(asked("slow"), model="m", id="begun")
            seen = await begun.take()
            place = next(number for number, peer in enumerate(peers) if "begun" in peer._running)
            while len(seen) < 3:
                seen += await begun.take()
            servers[place].process.kill()
            while more := await begun.take():
                seen += more
            assert isinstance(seen[-1], Failed)
            assert "went away" in seen[-1].error.message
            await begun.aclose()
            assert set(await asyncio.gather(*whole)) == {"one two three four five six"}
            assert [peer.up for peer in peers].count(True) == 1

            servers[1 - place].process.kill()
            with pytest.raises(ServerError) as gone:
                await answer(service, "hello", "last")
            assert gone.value.report.status in (500, 503)
            with pytest.raises(ServerError) as nobody:
                await answer(service, "hello", "later")
            assert nobody.value.report.kind == "overloaded"

    with peer_servers(tmp_path, 2) as servers:
        asyncio.run(play(servers))


def test_leaving_hangs_up_and_the_peer_stops(tmp_path: Path) -> None:
    async def play(server: Serving) -> None:
        async with front(Peer(server.address, None)) as service, httpx.AsyncClient() as client:
            run = await service.start(asked("slow"), model="m", id="r")
            await run.take()
            await run.aclose()
            async with asyncio.timeout(5):
                while (await client.get(f"{server.address}/v1/status")).json()["num_running"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    with peer_servers(tmp_path, 1) as servers:
        asyncio.run(play(servers[0]))


def test_another_server_is_asked_with_the_key_and_answers() -> None:
    seen: list[httpx.Request] = []

    def reply(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=ANSWER)

    async def play() -> None:
        async with front(made_up(reply)) as service:
            async with await service.start(asked("hello"), model="m", id="r") as run:
                completion = await run.collect()
            assert completion.choices[0].text("text") == "hello"
            finished = completion.choices[0].finished
            assert finished is not None
            assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (3, 1)

    asyncio.run(play())
    [request] = seen
    assert request.headers["authorization"] == "Bearer secret"
    body = json.loads(request.content)
    assert "temperature" not in body  # the defaults are the peer's own
    assert body["model"] == "m"


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_what_one_peer_does_not_take_another_does(status: int) -> None:
    async def play() -> None:
        def refuse(request: httpx.Request) -> httpx.Response:
            return httpx.Response(status, json={"error": {"message": "No."}})

        answers = made_up(lambda request: httpx.Response(200, content=ANSWER), "other")
        async with front(made_up(refuse), answers) as service:
            assert await answer(service, "hello", "r") == "hello"

    asyncio.run(play())


def test_where_no_peer_takes_it_the_client_hears_when_to_try_again() -> None:
    async def play() -> None:
        async with front(made_up(lambda request: httpx.Response(429))) as service:
            with pytest.raises(ServerError) as refused:
                await answer(service, "hello", "r")
            assert (refused.value.report.status, refused.value.report.retry_after) == (503, 2.0)

    asyncio.run(play())


def test_what_the_client_can_mend_is_told_in_the_peers_words_and_not_tried_elsewhere() -> None:
    async def play() -> None:
        asked_of: list[str] = []

        def refuse(request: httpx.Request) -> httpx.Response:
            asked_of.append(request.url.host)
            return httpx.Response(400, json={"error": {"message": "Too hot.", "param": "temperature"}})

        async with front(made_up(refuse, "one"), made_up(refuse, "two")) as service:
            with pytest.raises(ServerError, match="Too hot") as refused:
                await answer(service, "hello", "r")
            assert (refused.value.report.status, refused.value.report.param) == (400, "temperature")
        assert len(asked_of) == 1

    asyncio.run(play())


def test_a_task_that_peers_are_not_asked_is_refused() -> None:
    async def play() -> None:
        async with front(made_up(lambda request: httpx.Response(200, content=ANSWER))) as service:
            task = CountTokens(GenerationRequest(model="m", prompt="x"))
            with pytest.raises(ServerError) as refused:
                await service.start(task, model="m", id="r")
            assert refused.value.report.kind == "unsupported"

    asyncio.run(play())


def test_an_unknown_name_is_refused_with_those_that_the_peers_have() -> None:
    async def play() -> None:
        async with front(made_up(lambda request: httpx.Response(200))) as service:
            with pytest.raises(ServerError, match="The peers have: m"):
                await service.start(asked("hello"), model="nope", id="r")

    asyncio.run(play())


def test_a_fault_of_our_own_ends_the_request_and_blames_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_peers: list[str] = []

    def reply(request: httpx.Request) -> httpx.Response:
        asked_peers.append(request.url.host)
        return httpx.Response(200, content=ANSWER)

    def chunk(self: object, data: bytes) -> Iterator[object]:
        raise ZeroDivisionError

    monkeypatch.setattr("pippin.runtime.peers.peers.AnswerReader.chunk", chunk)

    async def play() -> None:
        first, second = made_up(reply, "one"), made_up(reply, "two")
        async with front(first, second) as service:
            with pytest.raises(ServerError) as raised:
                await asyncio.wait_for(answer(service, "hello", "r"), 10)
            assert raised.value.report.kind == "internal"
            assert len(asked_peers) == 1
            assert first.up
            assert second.up

    asyncio.run(play())


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b" " * (1 << 20)
        await asyncio.sleep(0)


@pytest.mark.parametrize("packed", [False, True])
def test_a_list_of_models_without_end_or_packed_is_not_read(packed: bool) -> None:
    taken = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal taken
        async for data in endless():
            taken += len(data)
            yield data

    headers = {"content-encoding": "gzip"} if packed else {}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body(), headers=headers))

    async def play() -> bool:
        peer = Peer("http://made-up:1", None, transport)
        await peer.check()
        await peer.close()
        return peer.up

    assert not asyncio.run(play())
    assert taken <= module.LARGEST_LIST + (2 << 20)


def test_an_answer_without_end_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_ANSWER", 4 << 20)

    async def lines() -> AsyncIterator[bytes]:
        piece = json.dumps({"choices": [{"index": 0, "delta": {"content": "x" * 10_000}}]}).encode()
        while True:
            yield b"data: " + piece + b"\n\n"

    async def play() -> None:
        async with front(made_up(lambda request: httpx.Response(200, content=lines()))) as service:
            with pytest.raises(ServerError, match="went away"):
                await answer(service, "hello", "r")

    asyncio.run(play())


def test_a_peer_that_falls_silent_leaves_its_requests_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_EVERY", 0.1)
    monkeypatch.setattr(module, "CHECK_WITHIN", 0.1)
    stopped = asyncio.Event()

    async def silent(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/models":
            stopped.set()
        elif not stopped.is_set():
            return httpx.Response(200, json=LISTED)
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")

    async def play() -> str:
        quiet = Peer("http://silent:1", None, httpx.MockTransport(silent))
        lively = made_up(lambda request: httpx.Response(200, content=ANSWER), "lively")
        async with front(quiet, lively) as service:
            async with asyncio.timeout(10):
                while not stopped.is_set():
                    said = await answer(service, "hello", "r")
            assert not quiet.up
            return said

    assert asyncio.run(play()) == "hello"
