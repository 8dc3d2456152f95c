"""The service over real worker processes of the scripted engine."""

import asyncio

from pippin.core.conversation import Message, Text
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from tests.service_doubles import scripted_service


def chat(text: str, **fields: object) -> Generate:
    return Generate(GenerationRequest(model="scripted", messages=(Message("user", (Text(text),)),), **fields))


def test_a_request_is_answered_by_the_model_it_names() -> None:
    async def main() -> str:
        async with scripted_service() as service:
            async with await service.start(chat("Hello there, world"), model="scripted", id="r1") as run:
                assert run.accepted is not None
                return (await run.collect()).choices[0].text("text")

    assert asyncio.run(main()) == "Hello there, world"
