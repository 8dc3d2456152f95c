"""inspect-ai: an evaluation of two samples, one of them with a tool, scored."""

import os
import sys

os.environ |= {"OPENAI_BASE_URL": f"{sys.argv[1]}/v1", "OPENAI_API_KEY": "none"}

from inspect_ai import Task, eval  # noqa: A004 - the addresses are read when it is imported
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@tool
def weather():  # type: ignore[no-untyped-def]
    async def execute(city: str) -> str:
        """Tells the weather.

        Args:
            city: Where.
        """
        return f"rain in {city}"

    return execute


task = Task(
    dataset=[
        Sample(input="What is the weather?", target="It rains in Oslo."),
        Sample(input="Say hello.", target="Hello there."),
    ],
    solver=[use_tools(weather()), generate()],
    scorer=includes(),
    config=GenerateConfig(temperature=0, max_tokens=200),
)
[log] = eval(task, model="openai-api/openai/scripted", display="none", log_dir="logs")
assert log.status == "success", log.error
assert log.results is not None
assert log.results.scores[0].metrics["accuracy"].value == 1.0
