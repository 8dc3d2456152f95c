"""The one path of all dialects: streams, whole answers, keep-alives, hang-ups, cancels, failures."""

import asyncio
import json
import logging
from typing import Any, cast

import pytest

from pippin.api.app import create_app, open_api
from pippin.config.options.server import ServerOptions
from pippin.config.settings import Settings
from pippin.core.errors import ErrorReport
from pippin.core.events import Accepted, PartDelta, PartStarted, Progress
from pippin.core.models import ModelState
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from pippin.service.service import Service
from tests.api.fakes import MODEL, FakeRun, FakeService, Wire, application, client_of
from tests.api.golden_events import SEQUENCES

CHAT: dict[str, Any] = {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}]}
STREAMED = json.dumps(CHAT | {"stream": True}).encode()
WHOLE = json.dumps(CHAT).encode()
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": CHAT,
    "/completions": {"model": MODEL.id, "prompt": "Hi"},
    "/responses": {"model": MODEL.id, "input": "Hi"},
    "/messages": {"model": MODEL.id, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
}


def request_of(service: FakeService, number: int = 0) -> GenerationRequest:
    task = service.runs[number].task
    assert isinstance(task, Generate)
    return task.request


async def post(service: FakeService, body: Any, path: str = "/v1/chat/completions", **options: Any) -> Any:
    headers = options.pop("headers", {})
    async with client_of(application(service, **options)) as client:
        return await client.post(path, json=body, headers=headers)


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("path", BODIES)
def test_every_dialect_answers_with_and_without_the_version(path: str, prefix: str) -> None:
    async def main() -> None:
        service = FakeService()
        reply = await post(service, BODIES[path], prefix + path)
        assert reply.status_code == 200, reply.text
        assert "Hello, world" in reply.text
        streamed = await post(service, BODIES[path] | {"stream": True}, prefix + path)
        assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "Hello" in streamed.text
        assert all(run.closed for run in service.runs)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_a_refusal_has_its_status_in_streams_too(path: str, stream: bool) -> None:
    async def main() -> None:
        service = FakeService()
        service.refusal = ErrorReport(kind="context_length_exceeded", message="Too long.", param="messages")
        reply = await post(service, BODIES[path] | {"stream": stream}, path)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"] == "Too long."

    asyncio.run(main())


@pytest.mark.parametrize("path", BODIES)
def test_an_unknown_model_is_404_in_the_shape_of_the_dialect(path: str) -> None:
    reply = asyncio.run(post(FakeService(), BODIES[path] | {"model": "nope"}, path))
    assert reply.status_code == 404
    body = reply.json()
    assert "nope" in body["error"]["message"]
    assert ("type" in body) == (path == "/messages")


def test_default_means_the_served_model_and_the_answer_names_it() -> None:
    reply = asyncio.run(post(FakeService(), CHAT | {"model": "default"}))
    assert reply.json()["model"] == MODEL.id


def test_a_run_that_fails_is_500_whole_and_an_error_event_in_a_stream() -> None:
    async def main() -> None:
        service = FakeService(SEQUENCES["fails_in_text"])
        whole = await post(service, CHAT)
        assert whole.status_code == 500
        assert whole.json()["error"]["type"] == "server_error"
        streamed = await post(service, CHAT | {"stream": True})
        assert streamed.status_code == 200
        *_, error, done = streamed.text.strip().split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "worker_died"
        assert done == "data: [DONE]"

    asyncio.run(main())


def test_whatever_nobody_expected_is_a_500_that_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService()
    service.failure = RuntimeError("secret at 0xdeadbeef")
    reply = asyncio.run(post(service, CHAT))
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert "secret" not in reply.text
    assert "RuntimeError" in caplog.text


@pytest.mark.parametrize("body", [STREAMED, WHOLE])
def test_a_hang_up_while_it_runs_cancels_and_is_logged_as_499(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> FakeService:
        service = FakeService()
        service.hold = True
        wire = Wire(application(service), body)
        running = asyncio.create_task(wire.run())
        await service.began.wait()
        await asyncio.sleep(0.01)
        wire.gone.set()
        await asyncio.wait_for(running, 1)
        return service

    caplog.set_level(logging.INFO)
    service = asyncio.run(main())
    assert service.runs[0].closed
    assert " 499 " in caplog.text


def test_who_hangs_up_before_the_end_has_used_the_tokens_too(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> list[int]:
        said = [PartStarted(0, 0, "text"), PartDelta(0, 0, "a b", completed=7)]
        service = FakeService([Accepted(prompt_tokens=5), *said])
        app = application(service, token_rate_limit=6)
        wire = Wire(app, STREAMED)
        running = asyncio.create_task(wire.run())
        await wire.until("a b")
        wire.gone.set()
        await asyncio.wait_for(running, 1)
        again = Wire(app, STREAMED)
        await again.run()
        return [wire.sent[0]["status"], again.sent[0]["status"]]

    caplog.set_level(logging.INFO)
    assert asyncio.run(main()) == [200, 429]
    assert " prompt=5 cached=0 completion=7 " in caplog.text


@pytest.mark.parametrize("body", [STREAMED, WHOLE])
def test_a_hang_up_while_the_model_loads_gives_up_the_wait(body: bytes) -> None:
    async def main() -> FakeService:
        service = FakeService()
        service.may_start.clear()
        wire = Wire(application(service), body)
        running = asyncio.create_task(wire.run())
        await asyncio.sleep(0.02)
        wire.gone.set()
        await asyncio.wait_for(running, 1)
        return service

    assert asyncio.run(main()).runs == []


async def start_after(text: str, service: FakeService, wire: Wire) -> None:
    """Ask; the service starts once so much of its answer has come."""
    service.may_start.clear()
    asking = asyncio.create_task(wire.run())
    await wire.until(text)
    service.may_start.set()
    await asking


def test_a_slow_start_sends_headers_and_comments() -> None:
    async def main() -> None:
        service = FakeService()
        wire = Wire(application(service, keepalive_interval=0.02), STREAMED)
        await start_after(": keep-alive\n\n" * 3, service, wire)
        assert wire.sent[0]["status"] == 200
        assert wire.text.startswith(": ")
        assert wire.text.endswith("data: [DONE]\n\n")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("stage", "progress", "words"),
    [
        ("waiting", None, "waits until other models are done"),
        ("starting", None, "is starting"),
        ("weights", None, "loads its weights"),
        ("weights", (30, 120, "weights"), "has loaded 25 % of its weights"),
    ],
)
@pytest.mark.parametrize("path", BODIES)
def test_a_stream_that_waits_for_a_load_tells_how_far_it_is(
    path: str, stage: Any, progress: Any, words: str
) -> None:
    async def main() -> None:
        service = FakeService()
        service.pool.loading = ModelState(
            id=MODEL.id, kind="language", state="loading", stage=stage, progress=progress
        )
        body = json.dumps(BODIES[path] | {"stream": True}).encode()
        wire = Wire(application(service, keepalive_interval=0.02), body, path)
        await start_after(f": the model {words}\n\n", service, wire)

    asyncio.run(main())


def test_a_refusal_after_the_headers_is_an_error_event() -> None:
    async def main() -> None:
        service = FakeService()
        service.refusal = ErrorReport(kind="load_failed", message="No such weights.")
        wire = Wire(application(service, keepalive_interval=0.01), STREAMED)
        await start_after(": keep-alive", service, wire)
        assert '"code":"model_load_failed"' in wire.text
        assert wire.text.endswith("data: [DONE]\n\n")

    asyncio.run(main())


def test_silence_is_filled_even_while_progress_is_told() -> None:
    async def main() -> None:
        service = FakeService([Accepted(prompt_tokens=5)])
        wire = Wire(application(service, keepalive_interval=0.03), STREAMED)
        running = asyncio.create_task(wire.run())
        await service.began.wait()
        for done in range(1000):
            service.runs[0].mailbox.put(Progress(done=done, total=1000))
            await asyncio.sleep(0.005)
            if ": keep-alive" in wire.text:
                break
        assert ": keep-alive" in wire.text
        service.runs[0].fail(ErrorReport(kind="internal", message="Enough."))
        await running

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "fields"),
    [*((path, {}) for path in BODIES), ("/responses", {"background": True, "store": True})],
)
def test_a_changed_interval_of_keep_alives_holds_for_every_stream(path: str, fields: dict[str, Any]) -> None:
    async def main() -> None:
        service = FakeService([Accepted(prompt_tokens=5)])
        app = application(service, keepalive_interval=600.0)
        async with client_of(app) as client:
            changed = await client.patch("/v1/settings", json={"keepalive_interval": 0.01})
            assert changed.json()["applied"] == ["keepalive_interval"]
        wire = Wire(app, json.dumps(BODIES[path] | {"stream": True} | fields).encode(), "/v1" + path)
        running = asyncio.create_task(wire.run())
        # Two of `response.in_progress` that repeat it are the third event and the fourth.
        await wire.until('"sequence_number":3' if path == "/responses" else ": keep-alive")
        service.runs[0].fail(ErrorReport(kind="internal", message="Enough."))
        await running

    asyncio.run(main())


def test_one_wake_up_is_one_write() -> None:
    async def main() -> None:
        wire = Wire(application(FakeService(SEQUENCES["long_text"])), STREAMED)
        await wire.run()
        bodies = [message["body"] for message in wire.sent[1:]]
        assert len(bodies) == 3  # all that was there, [DONE], the end of the body

    asyncio.run(main())


def test_an_answer_whose_end_is_cut_off_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        closing = asyncio.Event()

        async def aclose(self: FakeRun) -> None:
            closing.set()
            await asyncio.Event().wait()

        async with client_of(application(FakeService(), max_concurrent=1)) as client:
            with monkeypatch.context() as patched:
                patched.setattr(FakeRun, "aclose", aclose)
                asked = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
                await asyncio.wait_for(closing.wait(), 5)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("method", "path"), [("DELETE", "/v1/requests/{}"), ("POST", "/requests/{}/cancel")])
def test_a_running_request_is_stopped_by_its_id(method: str, path: str, stream: bool) -> None:
    async def main() -> None:
        service = FakeService()
        service.hold = True
        app = application(service)
        wire = Wire(app, STREAMED if stream else WHOLE)
        wire.headers += ((b"x-request-id", b"my-own.id-7"),)
        running = asyncio.create_task(wire.run())
        await service.began.wait()
        async with client_of(app) as client:
            reply = await client.request(method, path.format("my-own.id-7"))
            assert reply.status_code == 200, reply.text
            assert reply.json()["status"] == "cancelled"
            await asyncio.wait_for(running, 1)
            assert "request_cancelled" in wire.text
            assert (await client.request(method, path.format("my-own.id-7"))).status_code == 404

    asyncio.run(main())


def test_a_request_is_stopped_by_the_id_of_its_answer() -> None:
    async def main() -> None:
        service = FakeService()
        service.hold = True
        app = application(service)
        wire = Wire(app, STREAMED)
        running = asyncio.create_task(wire.run())
        await wire.until('"role":"assistant"')
        answer = json.loads(wire.text.split("\n\n")[0].removeprefix("data: "))["id"]
        async with client_of(app) as client:
            assert (await client.delete(f"/v1/requests/{answer}")).status_code == 200
        await asyncio.wait_for(running, 1)

    asyncio.run(main())


def test_a_request_that_takes_too_long_is_ended_with_408() -> None:
    async def main() -> None:
        service = FakeService()
        service.hold = True
        assert (await post(service, CHAT | {"timeout": 0.02})).status_code == 408
        assert (await post(service, CHAT, timeout=0.02)).status_code == 408
        assert all(run.closed for run in service.runs)
        service.may_start.clear()  # as while the model loads
        late = await post(service, CHAT, timeout=0.02)
        assert late.status_code == 408
        assert "longer than 0.02 seconds" in late.text

    asyncio.run(main())


def test_several_prompts_run_beside_one_another_and_all_are_closed() -> None:
    async def main() -> None:
        service = FakeService()
        reply = await post(service, {"model": MODEL.id, "prompt": ["a", "b", "c"]}, "/v1/completions")
        assert [choice["index"] for choice in reply.json()["choices"]] == [0, 1, 2]
        assert len({run.id for run in service.runs}) == 3
        streamed = await post(
            service, {"model": MODEL.id, "prompt": [[1, 2], [3]], "stream": True}, "/v1/completions"
        )
        assert streamed.text.count('"finish_reason":"stop"') == 2
        assert all(run.closed for run in service.runs)

    asyncio.run(main())


def test_whoever_was_answered_is_not_counted_any_more() -> None:
    """Else batches would think for ever that somebody else needs the model."""

    async def main() -> None:
        api = open_api(cast(Service, FakeService()), Settings(server=ServerOptions()))
        async with client_of(create_app(api)) as client:
            for _ in range(2):
                assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
                assert api.handler.answers.live == 0

    asyncio.run(main())


def test_the_request_id_is_echoed_or_made() -> None:
    async def main() -> None:
        service = FakeService()
        reply = await post(service, CHAT, headers={"x-request-id": "abc-1.2"})
        assert reply.headers["x-request-id"] == "abc-1.2"
        assert service.runs[0].id.startswith("abc-1.2.")
        again = await post(service, CHAT, headers={"x-request-id": "bad id\x7f" + "x" * 500})
        assert len(again.headers["x-request-id"]) == 32
        assert float(again.headers["x-process-time"]) > 0

    asyncio.run(main())


def test_the_same_request_id_twice_at_once_gives_two_answers() -> None:
    async def main() -> None:
        service = FakeService()
        replies = await asyncio.gather(
            *(post(service, CHAT, headers={"x-request-id": "same"}) for _ in range(2))
        )
        assert len({reply.json()["id"] for reply in replies}) == 2

    asyncio.run(main())


def test_tenants_have_caches_of_their_own() -> None:
    async def main() -> None:
        service = FakeService()
        for tenant in ("a", "b", "a"):
            await post(service, CHAT, headers={"x-tenant-id": tenant})
        await post(service, CHAT)
        salts = [request_of(service, number).cache_salt for number in range(4)]
        assert salts[0] == salts[2] != salts[1]
        assert salts[3] is None

    asyncio.run(main())


def test_several_keys_have_caches_of_their_own_unless_the_operator_says_otherwise() -> None:
    async def salts(**options: Any) -> list[str | None]:
        service = FakeService()
        for key in ("one", "two", "one"):
            headers = {"authorization": f"Bearer {key}"}
            reply = await post(service, CHAT, headers=headers, api_keys=("one", "two"), **options)
            assert reply.status_code == 200
        return [request_of(service, number).cache_salt for number in range(3)]

    for apart in (asyncio.run(salts()), asyncio.run(salts(cache_salt_per_key=True))):
        assert apart[0] == apart[2] != apart[1]
        assert None not in apart
    assert asyncio.run(salts(cache_salt_per_key=False)) == [None] * 3


def test_a_single_key_has_no_salt_unless_others_come_in_without_it() -> None:
    async def salt(**options: Any) -> str | None:
        service = FakeService()
        assert (await post(service, CHAT, headers={"x-api-key": "one"}, **options)).status_code == 200
        return request_of(service).cache_salt

    assert asyncio.run(salt(api_keys=("one",))) is None
    assert asyncio.run(salt(api_keys=("one",), open_paths=("/v1/chat",))) is not None
    assert asyncio.run(salt(api_keys=("one",), cache_salt_per_key=True)) is not None


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/v1/chat/completions", "tempreture"),
        ("/v1/completions", "tempreture"),
        ("/v1/messages", "tempreture"),
        ("/v1/responses", "tempreture"),
        ("/v1/responses", "text.formt"),
        ("/v1/chat/completions", "stream_options.include_usge"),
        ("/api/chat", "optoins"),
        ("/api/chat", "options.num_predct"),
    ],
)
def test_a_mistyped_field_is_named_in_the_answer_too(path: str, wrong: str) -> None:
    async def main() -> Any:
        asked = {"prompt": "Hi"} if path == "/v1/completions" else {"messages": CHAT["messages"]}
        asked = {"input": "Hi"} if path == "/v1/responses" else asked
        outer, _, inner = wrong.partition(".")
        body = {"model": MODEL.id, "stream": False, **asked, outer: {inner: 1} if inner else 1, "zzz": 1}
        body |= {"max_tokens": 4} if path == "/v1/messages" else {}
        async with client_of(application(FakeService())) as client:
            return (await client.post(path, json=body)).json()

    [told] = asyncio.run(main())["warnings"]
    assert told.startswith(f"There is no field `{wrong}`; it was ignored. Did you mean")


def test_an_unknown_field_is_ignored_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        service = FakeService()
        app = application(service)
        async with client_of(app) as client:
            for _ in range(3):
                body = CHAT | {"tempreture": 1, "stream_options": {"include_usge": True}}
                reply = await client.post("/v1/chat/completions", json=body)
                assert reply.status_code == 200

    asyncio.run(main())
    assert caplog.text.count("tempreture") == 1
    assert "Did you mean `temperature`?" in caplog.text
    assert caplog.text.count("stream_options.include_usge") == 1
