"""One model with and without a LoRA adapter, which `pippin serve MODEL --adapter NAME=FOLDER` names."""

import os

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))
ADAPTER = os.environ.get("PIPPIN_ADAPTER", "style")

for settings in ({}, {"adapter_path": ADAPTER}):
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=16,
        temperature=0,
        extra_body=settings,
    )
    print(f"{settings.get('adapter_path', 'without')}: {answer.choices[0].message.content!r}")
