"""LiteLLM's client: chat, a stream, Anthropic's API, embeddings. Run in an environment of its own."""

import sys

import litellm

litellm.telemetry = False
address = sys.argv[1]
hello = [{"role": "user", "content": "Hello"}]
openai = {"model": "openai/scripted", "api_base": f"{address}/v1", "api_key": "none"}
assert litellm.completion(messages=hello, **openai).choices[0].message.content == "Hello there."
pieces = [
    part.choices[0].delta.content or "" for part in litellm.completion(messages=hello, stream=True, **openai)
]
assert "".join(pieces) == "Hello there."
anthropic = {"model": "anthropic/scripted", "api_base": address, "api_key": "none", "max_tokens": 50}
assert litellm.completion(messages=hello, **anthropic).choices[0].message.content == "Hello there."
assert len(litellm.embedding(input=["a text"], encoding_format="float", **openai).data[0]["embedding"]) > 0
