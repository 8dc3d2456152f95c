"""Two turns over the Responses API, of which the server keeps the first."""

import os

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))

first = client.responses.create(model=MODEL, input="My name is Ada.", max_output_tokens=60)
print(first.output_text)
second = client.responses.create(
    model=MODEL, input="What is my name?", previous_response_id=first.id, max_output_tokens=60
)
print(second.output_text)
