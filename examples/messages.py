"""A streamed answer over the Anthropic API."""

import os

from anthropic import Anthropic

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = Anthropic(base_url=URL, api_key=os.environ.get("PIPPIN_API_KEY", "none"))
with client.messages.stream(
    model=MODEL, max_tokens=60, messages=[{"role": "user", "content": "Say hello."}]
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    print(f"\n{stream.get_final_message().usage.output_tokens} tokens")
