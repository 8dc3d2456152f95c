"""Swaps one model for another, many times, and looks at what that leaves behind."""

import asyncio
from contextlib import aclosing

from pippin.config.options.server import ServerOptions
from pippin.core.models import ModelInfo
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.service.service import Service
from tests.runtime import processes
from tests.service.doubles import scripted_service

ASKED = GenerationRequest(model="", prompt="same", max_tokens=8, sampling=Sampling(temperature=0.0))


async def said(service: Service, model: str, id: str) -> str:
    """The model's answer to what everybody asks."""
    async with aclosing(await service.start(Generate(ASKED), model=model, id=id)) as run:
        return (await run.collect()).choices[0].text("text")


def swaps_leave_nothing(infos: list[ModelInfo], swaps: int) -> None:
    """Two models take turns in the place of one; each is asked the same thing each time."""

    async def scene() -> None:
        answers: dict[str, set[str]] = {info.id: set() for info in infos}
        async with scripted_service(*infos, options=ServerOptions(max_models=1)) as service:
            for number in range(-6, swaps):
                if number == 0:
                    descriptors, memory = processes.descriptors(), processes.resident()
                model = infos[number % 2].id
                answers[model].add(await said(service, model, f"r{number}"))
                assert len(processes.children()) == 1
            await asyncio.sleep(0.1)
            assert processes.descriptors() == descriptors
            assert processes.resident() - memory < 8 << 20
        assert processes.children() == []
        assert all(len(texts) == 1 for texts in answers.values())

    asyncio.run(scene())
