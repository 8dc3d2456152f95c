"""Pydantic AI: text, a tool call, an object of a class, a stream."""

import asyncio
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
model = OpenAIChatModel("scripted", provider=provider)


class Color(BaseModel):
    name: str


async def main() -> None:
    agent = Agent(model, model_settings={"temperature": 0, "max_tokens": 200})

    @agent.tool_plain
    def weather(city: str) -> str:
        """Tells the weather."""
        return f"rain in {city}"

    assert (await agent.run("What is the weather?")).output == "It rains in Oslo."
    async with agent.run_stream("Hello") as stream:
        assert await stream.get_output() == "Hello there."
    colors = Agent(model, output_type=NativeOutput(Color))
    assert (await colors.run("A color, please")).output == Color(name="red")


asyncio.run(main())
