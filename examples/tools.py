"""A tool that the model calls and this program runs."""

import json
import os

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def weather(city: str) -> str:
    return f"rain in {city}, 9 degrees"


messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
asked = client.chat.completions.create(
    model=MODEL, messages=messages, tools=[TOOL], tool_choice="required", temperature=0
)
messages.append(asked.choices[0].message)
for call in asked.choices[0].message.tool_calls:
    result = weather(**json.loads(call.function.arguments))
    print(f"{call.function.name}({call.function.arguments}) -> {result}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], max_tokens=100)
print(answer.choices[0].message.content)
