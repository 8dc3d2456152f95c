"""The demo model in real workers: deaths and swaps change no answer."""

import asyncio
import signal
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pippin.catalog.info import read_info
from pippin.config.options.server import ServerOptions
from pippin.core.completion import Completion, collect
from pippin.core.conversation import Message, Text, Tool, ToolChoice
from pippin.core.events import Counted, Event, Finished, PartDelta
from pippin.core.models import ModelInfo
from pippin.core.requests import GenerationRequest, JsonSchema, Sampling
from pippin.core.tasks import CountTokens, Generate
from pippin.service.service import Service
from tests.engines.tiny_models import tiny_model
from tests.runtime import processes
from tests.runtime.swapping import swaps_leave_nothing
from tests.service.doubles import events_of, scripted_service

pytestmark = pytest.mark.model

PROMPTS = ("Name a colour.", "What is two plus two?", "Say hello in French.", "Who wrote Hamlet?")


def imported(folder: Path, name: str) -> ModelInfo:
    return msgspec.structs.replace(read_info(folder), id=name)


def greedy(text: str, tokens: int) -> GenerationRequest:
    message = Message("user", (Text(text),))
    return GenerationRequest(
        model="default", messages=(message,), max_tokens=tokens, sampling=Sampling(temperature=0.0)
    )


async def answer(service: Service, model: str, text: str, id: str, tokens: int = 8) -> str:
    """The text, read as it streams."""
    async with aclosing(await service.start(Generate(greedy(text, tokens)), model=model, id=id)) as run:
        events = [event async for event in events_of(run)]
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, PartDelta))


def test_an_answer_whose_worker_is_killed_goes_on_and_the_next_is_the_same(demo_model: Path) -> None:
    async def scene() -> None:
        info = imported(demo_model, "demo")
        async with scripted_service(info, options=ServerOptions()) as service:
            async with aclosing(
                await service.start(CountTokens(greedy("Hi", 1)), model="demo", id="c")
            ) as run:
                [counted] = await run.take()
                assert isinstance(counted, Counted)
            before = await answer(service, "demo", PROMPTS[0], "r1")
            assert before
            async with aclosing(
                await service.start(Generate(greedy("Tell a story.", 48)), model="demo", id="k")
            ) as run:
                assert run.accepted is not None
                assert run.accepted.prompt_tokens > counted.tokens
                events = await run.take()
                processes.signal(service.pool.states()[0].pid, signal.SIGKILL)
                events += [event async for event in events_of(run)]
            assert isinstance(events[-1], Finished)
            story = "".join(event.text for event in events if isinstance(event, PartDelta))
            assert story == await answer(service, "demo", "Tell a story.", "k2", tokens=48)
            assert await answer(service, "demo", PROMPTS[0], "r2") == before
            assert service.pool.states()[0].restarts == 1

    asyncio.run(scene())


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 4, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def asked(**fields: Any) -> GenerationRequest:
    message = Message("user", (Text("Describe a sailor of the North Sea."),))
    return GenerationRequest(model="default", messages=(message,), max_tokens=24, **fields)


SEEDED = Sampling(temperature=1.0, seed=7)
KINDS = {
    "grammar": asked(output_format=JsonSchema(SCHEMA), sampling=SEEDED),
    "call": asked(
        tools=(Tool("note", "Takes a note.", SCHEMA),), tool_choice=ToolChoice("required"), sampling=SEEDED
    ),
    "several": asked(n=3, logprobs=2, sampling=SEEDED),
    "penalised": asked(
        logprobs=0,
        sampling=Sampling(temperature=0.8, seed=3, top_p=0.9, repetition_penalty=1.2),
    ),
}


def told(completion: Completion) -> list[Any]:
    """What a client is told, without the ids of calls, which are drawn."""
    return [
        (
            [
                (part.kind, part.name, part.text, [(each.id, len(each.top)) for each in part.tokens])
                for part in choice.parts
            ],
            None if choice.finished is None else choice.finished.reason,
        )
        for choice in completion.choices
    ]


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_grammars_calls_logprobs_and_several_choices_go_on_with_the_draws_that_they_had(
    demo_model: Path, kills: int
) -> None:
    async def answers(service: Service, stem: str, kills: int = 0) -> dict[str, list[Any]]:
        runs = {
            name: await service.start(Generate(each), model="demo", id=f"{stem} {name}")
            for name, each in KINDS.items()
        }
        read: dict[str, list[Event]] = {name: [] for name in runs}
        for _ in range(kills):
            for name, run in runs.items():
                read[name] += await run.take()
            processes.signal(service.pool.states()[0].pid, signal.SIGKILL)
        for name, run in runs.items():
            async with asyncio.timeout(240):
                read[name] += [event async for event in events_of(run)]
            await run.aclose()
        return {name: told(collect(events)) for name, events in read.items()}

    async def scene() -> None:
        async with scripted_service(imported(demo_model, "demo"), options=ServerOptions()) as service:
            quiet = await answers(service, "quiet")
            assert await answers(service, "killed", kills) == quiet
            assert service.pool.states()[0].restarts >= 1
            assert {reason for each in quiet.values() for _, reason in each} <= {
                "length",
                "stop",
                "tool_calls",
            }

    asyncio.run(scene())


@pytest.mark.long
def test_swaps_under_sixteen_clients_lose_no_request_and_change_no_answer(demo_model: Path) -> None:
    async def scene() -> None:
        infos = [imported(demo_model, name) for name in ("one", "two")]
        options = ServerOptions(max_models=1, contention_policy="wait")
        async with scripted_service(*infos, options=options) as service:
            alone = {text: await answer(service, "one", text, f"alone {text}") for text in PROMPTS}

            async def client(number: int) -> None:
                for turn in range(3):
                    model, text = ("one", "two")[(number + turn) % 2], PROMPTS[number % len(PROMPTS)]
                    assert await answer(service, model, text, f"{number}.{turn}") == alone[text]

            await asyncio.gather(*(client(number) for number in range(16)))
            assert service.active == 0

    asyncio.run(scene())


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_hundred_swaps_of_real_models_leak_no_process_no_descriptor_no_memory(tmp_path: Path) -> None:
    kinds = ("llama", "qwen3")
    infos = [read_info(tiny_model(kind, tmp_path / kind)) for kind in kinds]
    named = [msgspec.structs.replace(info, id=kind) for info, kind in zip(infos, kinds, strict=True)]
    swaps_leave_nothing(named, 100)
