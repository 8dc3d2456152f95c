"""An answer that is JSON of a given shape, whatever the model."""

import json
import os

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "country": {"enum": ["France", "Italy", "Norway"]},
        "inhabitants": {"type": "integer", "minimum": 1, "maximum": 100_000_000},
    },
    "required": ["city", "country", "inhabitants"],
    "additionalProperties": False,
}
answer = client.chat.completions.create(
    model=MODEL,
    messages=[{"role": "user", "content": "Describe Paris."}],
    response_format={
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
    },
    temperature=0,
)
city = json.loads(answer.choices[0].message.content)
print(f"{city['city']}, {city['country']}: {city['inhabitants']} inhabitants")
