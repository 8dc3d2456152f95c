"""The service over real worker processes of the scripted engine."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.conversation import Message, Text
from pippin.core.errors import ServerError
from pippin.core.events import Counted, Failed
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Generate
from pippin.service.service import Service
from tests.service.doubles import StaticCatalog, events_of, scripted, scripted_service, write_script


def request(text: str, **fields: Any) -> GenerationRequest:
    return GenerationRequest(model="scripted", messages=(Message("user", (Text(text),)),), **fields)


def chat(text: str, **fields: Any) -> Generate:
    return Generate(request(text, **fields))


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


async def answer(service: Service, task: Generate, id: str = "r", model: str = "default") -> str:
    async with aclosing(await service.start(task, model=model, id=id)) as run:
        return (await run.collect()).choices[0].text("text")


def test_a_request_is_answered_by_the_model_it_names() -> None:
    async def scene() -> None:
        async with scripted_service() as service:
            async with aclosing(await service.start(chat("Hello there"), model="scripted", id="r")) as run:
                assert run.accepted is not None
                assert run.accepted.prompt_tokens > 2
                completion = await run.collect()
            assert completion.choices[0].text("text") == "Hello there"
            assert service.active == 0

    play(scene)


def test_default_is_the_first_model_that_is_served(tmp_path: Path) -> None:
    async def scene() -> None:
        rule = {"say": "I am the other"}
        other = scripted("other", write_script(tmp_path, rule))
        options = ServerOptions(models=(ModelEntry(path="scripted"),))
        async with scripted_service(scripted(), other, options=options) as service:
            assert (await service.names.find("default")).id == "scripted"
            assert await answer(service, chat("Hi")) == "Hi"
            assert await answer(service, chat("Hi"), model="other") == "I am the other"
            assert await answer(service, chat("Hi")) == "Hi", "it stays the first that is served"

    play(scene)


def test_an_unknown_model_is_refused_before_anything_runs() -> None:
    async def scene() -> None:
        async with scripted_service() as service:
            with pytest.raises(ServerError) as refused:
                await service.start(chat("Hi"), model="nobody", id="r")
            assert refused.value.report.status == 404
            assert service.pool.states() == []
            assert service.active == 0

    play(scene)


def test_default_without_any_model_says_what_to_do() -> None:
    async def scene() -> None:
        models = (scripted("a"), scripted("b"))
        async with scripted_service(*models, options=ServerOptions()) as service:
            with pytest.raises(ServerError, match="/v1/models") as refused:
                await service.names.find("default")
            assert refused.value.report.param == "model"

    play(scene)


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"n": 17}, "n"), ({"n": 0}, "n")],
)
def test_counts_of_choices_are_limited(fields: dict[str, int], param: str) -> None:
    async def scene() -> None:
        async with scripted_service() as service:
            with pytest.raises(ServerError) as refused:
                await service.start(chat("Hi", **fields), model="default", id="r")
            assert (refused.value.report.status, refused.value.report.param) == (400, param)
            assert service.pool.states() == [], "nothing is loaded for it"

    play(scene)


def test_max_request_tokens_refuses_more_and_caps_the_default() -> None:
    async def scene() -> None:
        options = {"scripted": ModelOptions(max_request_tokens=4)}
        catalog = StaticCatalog(scripted(), options=options)
        async with scripted_service(catalog=catalog) as service:
            with pytest.raises(ServerError, match="at most 4"):
                await service.start(chat("Hi", max_tokens=5), model="default", id="r")
            assert await answer(service, chat("a b c d e f")) == "a b c d"

    play(scene)


def test_changed_options_hold_for_a_model_that_is_loaded() -> None:
    async def scene() -> None:
        catalog = StaticCatalog(scripted(context_window=40))
        async with scripted_service(catalog=catalog) as service:
            assert await answer(service, chat("Hi")) == "Hi"
            turns = tuple(Message("user", (Text(f"turn {number}"),)) for number in range(8))
            long = Generate(GenerationRequest(model="default", messages=turns))
            with pytest.raises(ServerError, match="window of 'scripted' holds 40"):
                await service.start(long, model="default", id="r")
            catalog.changed["scripted"] = ModelOptions(overflow="truncate")
            await service.adopt(ServerOptions())
            async with aclosing(await service.start(long, model="default", id="r")) as run:
                assert run.accepted is not None
                assert run.accepted.prompt_tokens < 40

    play(scene)


def test_a_context_overflow_is_refused_with_its_numbers() -> None:
    async def scene() -> None:
        async with scripted_service(scripted(context_window=10)) as service:
            with pytest.raises(ServerError, match="window of 'scripted' holds 10") as refused:
                await service.start(chat("a b c d e f g h i j k"), model="default", id="r")
            assert refused.value.report.kind == "context_length_exceeded"

    play(scene)


def test_tokens_are_counted_before_the_weights_are_there(tmp_path: Path) -> None:
    async def scene() -> None:
        script = write_script(tmp_path, load_seconds=30.0)
        async with scripted_service(scripted(script=script)) as service:
            async with aclosing(
                await service.start(CountTokens(request("a b c")), model="default", id="r")
            ) as run:
                events = [event async for event in events_of(run)]
            assert [type(event) for event in events] == [Counted]
            assert service.pool.states()[0].state == "loading"
            with pytest.raises(ServerError, match="window"):
                await service.start(chat("word " * 5000), model="default", id="s")

    play(scene)


def test_leaving_a_run_stops_the_engine_within_a_step(tmp_path: Path) -> None:
    async def scene() -> None:
        script = write_script(tmp_path, {"say": "word " * 1000, "gap": 0.01})
        async with scripted_service(scripted(script=script)) as service:
            async with aclosing(await service.start(chat("Hi"), model="default", id="r")) as run:
                await run.take()
            await asyncio.sleep(0.05)
            stats = await service.pool.stats("scripted")
            assert stats.running == 0
            assert service.pool.states()[0].active == 0

    play(scene)


def test_the_same_id_runs_only_once_at_a_time(tmp_path: Path) -> None:
    async def scene() -> None:
        script = write_script(tmp_path, {"say": "a b c", "gap": 0.1})
        async with scripted_service(scripted(script=script)) as service:
            async with aclosing(await service.start(chat("Hi"), model="default", id="r")):
                with pytest.raises(ServerError) as refused:
                    await service.start(chat("Hi"), model="default", id="r")
                assert refused.value.report.status == 409
            assert await answer(service, chat("Hi"), id="r") == "a b c"

    play(scene)


def long_conversation(policy: str | None) -> Generate:
    system = Message("system", (Text("Be brief."),))
    turns = []
    for number in range(20):
        turns.append(Message("user", (Text(f"Question {number} of some length"),)))
        turns.append(Message("assistant", (Text(f"Answer {number} of some length"),)))
    last = Message("user", (Text("What now?"),))
    messages = (system, *turns, last)
    return Generate(GenerationRequest(model="default", messages=messages, overflow=policy))  # type: ignore[arg-type]


def test_summarize_replaces_older_messages_and_answers(tmp_path: Path) -> None:
    async def scene() -> None:
        rule = {"when": {"user": "^Summarize the conversation"}, "say": "They talked."}
        seen = {"when": {"user": "What now"}, "say": "Go on."}
        info = scripted(script=write_script(tmp_path, rule, seen), context_window=200)
        async with scripted_service(info) as service:
            with pytest.raises(ServerError) as refused:
                await service.start(long_conversation(None), model="default", id="r")
            assert refused.value.report.kind == "context_length_exceeded"
            task = long_conversation("summarize")
            async with aclosing(await service.start(task, model="default", id="r")) as run:
                assert run.accepted is not None
                assert run.accepted.prompt_tokens < 200
                assert (await run.collect()).choices[0].text("text") == "Go on."

    play(scene)


def test_summarize_gives_the_error_where_nothing_can_be_summarized() -> None:
    async def scene() -> None:
        async with scripted_service(scripted(context_window=20)) as service:
            with pytest.raises(ServerError) as refused:
                await service.start(chat("word " * 50, overflow="summarize"), model="default", id="r")
            assert refused.value.report.kind == "context_length_exceeded"

    play(scene)


def test_closing_lets_requests_finish(tmp_path: Path) -> None:
    async def scene() -> None:
        script = write_script(tmp_path, {"say": "one two three", "gap": 0.1})
        async with scripted_service(scripted(script=script)) as service:
            run = await service.start(chat("Hi"), model="default", id="r")
            closing = asyncio.create_task(service.close(10.0))
            await asyncio.sleep(0.02)
            with pytest.raises(ServerError, match="shutting down") as refused:
                await service.start(chat("Hi"), model="default", id="s")
            assert refused.value.report.status == 503
            async with aclosing(run):
                assert (await run.collect()).choices[0].text("text") == "one two three"
            await closing

    play(scene)


def test_closing_ends_what_lasts_beyond_the_deadline_and_a_second_close_hastens(tmp_path: Path) -> None:
    async def scene() -> None:
        script = write_script(tmp_path, {"say": "word " * 1000, "gap": 0.1})
        async with scripted_service(scripted(script=script)) as service:
            run = await service.start(chat("Hi"), model="default", id="r")
            closing = asyncio.create_task(service.close(60.0))
            await asyncio.sleep(0.05)
            now = asyncio.create_task(service.close(0.0))
            async with aclosing(run):
                events = [event async for event in events_of(run)]
            assert isinstance(events[-1], Failed)
            assert events[-1].error.status == 503
            async with asyncio.timeout(5):
                await asyncio.gather(closing, now)

    play(scene)


def test_a_load_that_fails_says_why(tmp_path: Path) -> None:
    async def scene() -> None:
        reason = "The weights need a newer mlx-lm."
        script = write_script(tmp_path, load_error=reason)
        async with scripted_service(scripted(script=script)) as service:
            with pytest.raises(ServerError, match="newer mlx-lm") as failed:
                await service.start(chat("Hi"), model="default", id="r")
            assert failed.value.report.status == 424

    play(scene)


def test_a_missing_model_is_downloaded_once_for_all_who_ask() -> None:
    async def scene() -> None:
        catalog = StaticCatalog(scripted())
        catalog.downloads = {"org/new": scripted("org/new")}
        async with scripted_service(catalog=catalog) as service:
            answers = await asyncio.gather(
                *(answer(service, chat("Hi"), f"r{number}", "org/new") for number in range(4))
            )
            assert answers == ["Hi"] * 4
            assert catalog.asked_for == ["org/new"]

    play(scene)
