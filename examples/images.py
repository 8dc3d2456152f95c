"""A picture from text, and then an edit of it."""

import base64
import os
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))

made = client.images.generate(
    model=MODEL, prompt="A lighthouse at night", size="256x256", response_format="b64_json"
)
Path("lighthouse.png").write_bytes(base64.b64decode(made.data[0].b64_json))
print("lighthouse.png")
with Path("lighthouse.png").open("rb") as picture:
    edited = client.images.edit(
        model=MODEL, image=picture, prompt="The same in the morning", response_format="b64_json"
    )
Path("morning.png").write_bytes(base64.b64decode(edited.data[0].b64_json))
print("morning.png")
