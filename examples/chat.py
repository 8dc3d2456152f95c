"""A chat over two turns, the second streamed (OpenAI chat completions)."""

import os

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))

messages = [
    {"role": "system", "content": "Answer in one short sentence."},
    {"role": "user", "content": "What is the capital of France?"},
]
first = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=60, temperature=0)
print(first.choices[0].message.content)

messages += [first.choices[0].message, {"role": "user", "content": "And of Italy?"}]
with client.chat.completions.create(
    model=MODEL,
    messages=messages,
    max_tokens=60,
    temperature=0,
    stream=True,
    stream_options={"include_usage": True},
) as stream:
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        else:
            print(f"\n{chunk.usage.completion_tokens} tokens")
