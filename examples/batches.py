"""Many requests that may wait, as one batch."""

import io
import json
import os
import time

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))

lines = [
    {
        "custom_id": f"question-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"Say {number}."}],
            "max_tokens": 20,
        },
    }
    for number in range(3)
]
text = "\n".join(map(json.dumps, lines)).encode()
file = client.files.create(file=("questions.jsonl", io.BytesIO(text)), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status not in ("completed", "failed", "cancelled", "expired"):
    time.sleep(0.2)
    batch = client.batches.retrieve(batch.id)
print(batch.status, batch.request_counts.completed, "of", batch.request_counts.total)
for line in client.files.content(batch.output_file_id).text.splitlines():
    answer = json.loads(line)
    print(answer["custom_id"], answer["response"]["body"]["choices"][0]["message"]["content"])
