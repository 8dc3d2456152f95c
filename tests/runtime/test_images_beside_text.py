"""A worker that makes pictures beside one that generates text: at once, and within one budget."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from pippin.config.options.server import ServerOptions
from pippin.core.conversation import Message, Text
from pippin.core.events import Event, Picture, PicturesDone, Progress
from pippin.core.models import ModelInfo
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate, GenerateImages
from pippin.runtime.pool import Pool
from pippin.runtime.workers.supervisor import WorkerProcess
from pippin.service.service import Service
from tests.engines.images.tiny_pipelines import tiny_z_image
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.service.doubles import MIB, StaticCatalog, events_of, scripted

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
BUDGET = 4096 * MIB


@pytest.fixture(scope="module")
def infos(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelInfo, ModelInfo]:
    folder = tmp_path_factory.mktemp("models")
    painter = tiny_z_image(folder / "painter", turbo=True)
    text = tiny_vision_model("llava", folder / "writer")
    return (
        ModelInfo(id="painter", kind="images", path=str(painter)),
        ModelInfo(id="writer", kind="language", path=str(text), architecture="llava"),
    )


@asynccontextmanager
async def serving(infos: tuple[ModelInfo, ...]) -> AsyncIterator[Service]:
    options = ServerOptions()
    # The third is only there to need more room than the others leave.
    catalog = StaticCatalog(*infos, scripted("large"), sizes={"large": BUDGET - 64 * MIB})
    service = Service(
        options, catalog, Pool(options, catalog, catalog.footprint, BUDGET, WorkerProcess.launch)
    )
    try:
        yield service
    finally:
        await service.close(0.0)


async def paint(service: Service, id: str, begun: asyncio.Event | None = None, steps: int = 3) -> list[Event]:
    task = GenerateImages(prompt="a red fish", seed=7, steps=steps, width=64, height=64)
    events = []
    async with aclosing(await service.start(task, model="painter", id=id)) as run:
        async for event in events_of(run):
            events.append(event)
            if begun is not None and isinstance(event, Progress):
                begun.set()
    assert isinstance(events[-1], PicturesDone)
    return events


async def write(service: Service, id: str) -> str:
    message = Message("user", (Text("Say something."),))
    asked = GenerationRequest(
        model="writer", messages=(message,), max_tokens=24, sampling=Sampling(temperature=0.0)
    )
    async with aclosing(await service.start(Generate(asked), model="writer", id=id)) as run:
        return (await run.collect()).choices[0].text("text")


def drawn(events: list[Event]) -> list[str]:
    return [hashlib.sha256(event.data).hexdigest() for event in events if isinstance(event, Picture)]


def test_pictures_and_texts_are_made_at_once_and_as_alone(infos: tuple[ModelInfo, ModelInfo]) -> None:
    async def scene() -> None:
        async with serving(infos) as service:
            alone, picture = await write(service, "text"), drawn(await paint(service, "picture", steps=40))
            begun = asyncio.Event()
            painting = asyncio.create_task(paint(service, "both", begun, steps=40))
            await begun.wait()
            assert await write(service, "beside") == alone
            assert not painting.done()
            assert drawn(await painting) == picture
            states = {state.id: state for state in service.pool.states()}
            assert (states["painter"].state, states["writer"].state) == ("loaded", "loaded")
            assert states["painter"].pid != states["writer"].pid

    asyncio.run(scene())


def test_both_count_in_one_budget(infos: tuple[ModelInfo, ModelInfo]) -> None:
    async def scene() -> None:
        async with serving(infos) as service:
            await write(service, "text")
            picture = drawn(await paint(service, "picture"))
            states = {state.id: state for state in service.pool.states()}
            assert all(states[name].footprint > 64 * MIB for name in ("painter", "writer"))  # measured
            await service.pool.load("large")
            states = {state.id: state for state in service.pool.states()}
            assert states["large"].state == "loaded"
            assert [states[name].state for name in ("painter", "writer")] == ["unloaded"] * 2
            assert [states[name].evictions for name in ("painter", "writer")] == [1, 1]
            await service.pool.unload("large")
            assert drawn(await paint(service, "again")) == picture

    asyncio.run(scene())
