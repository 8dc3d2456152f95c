"""A chat over the Ollama API, with its own Python client."""

import os

from ollama import Client

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = Client(host=URL)
print("here:", [each.model for each in client.list().models])
for part in client.chat(
    model=MODEL,
    messages=[{"role": "user", "content": "Say hello."}],
    options={"num_predict": 60},
    stream=True,
):
    print(part.message.content, end="", flush=True)
print()
