"""OpenAI's agents: a tool call and a stream, over Chat Completions and over Responses."""

import asyncio
import sys

from openai import AsyncOpenAI

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")


@function_tool
def weather(city: str) -> str:
    """Tells the weather."""
    return f"rain in {city}"


async def main() -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        agent = Agent(
            name="Forecaster",
            model=kind(model="scripted", openai_client=client),
            model_settings=ModelSettings(temperature=0, max_tokens=200),
            tools=[weather],
        )
        whole = await Runner.run(agent, "What is the weather?")
        assert whole.final_output == "It rains in Oslo.", whole.final_output
        streamed = Runner.run_streamed(agent, "What is the weather?")
        async for _ in streamed.stream_events():
            pass
        assert streamed.final_output == "It rains in Oslo.", streamed.final_output


asyncio.run(main())
