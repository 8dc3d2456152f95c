"""A picture in a prompt: `python vision.py [PICTURE]`. Needs a vision model."""

import base64
import mimetypes
import os
import sys
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))

picture = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs/pictures/key.png")
kind = mimetypes.guess_type(picture)[0]
address = f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"
answer = client.chat.completions.create(
    model=MODEL,
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is on this picture?"},
                {"type": "image_url", "image_url": {"url": address}},
            ],
        }
    ],
    max_tokens=60,
)
print(answer.choices[0].message.content)
print(f"{answer.usage.prompt_tokens} tokens of prompt, with those of the picture")
