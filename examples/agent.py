"""A small agent: the model reads files of a folder through tools, until it answers. `python agent.py [FOLDER]`"""

import json
import os
import sys
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
MOST_TURNS = 6


def list_files() -> str:
    return "\n".join(sorted(path.name for path in FOLDER.iterdir() if path.is_file()))


def read_file(name: str) -> str:
    path = (FOLDER / name).resolve()
    if path.parent != FOLDER or not path.is_file():
        return f"There is no file {name}."
    return path.read_text("utf-8", errors="replace")[:4000]


TOOLS = {"list_files": list_files, "read_file": read_file}
DESCRIBED = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {"type": "object", "properties": fields},
        },
    }
    for name, text, fields in (
        ("list_files", "The names of all files.", {}),
        ("read_file", "The text of a file.", {"name": {"type": "string"}}),
    )
]
messages = [{"role": "user", "content": "Read the notes and say what to buy."}]
for _ in range(MOST_TURNS):
    message = (
        client.chat.completions.create(model=MODEL, messages=messages, tools=DESCRIBED).choices[0].message
    )
    messages.append(message)
    if not message.tool_calls:
        print(message.content)
        break
    for call in message.tool_calls:
        result = TOOLS[call.function.name](**json.loads(call.function.arguments))
        print(f"{call.function.name}({call.function.arguments}) -> {result[:60]!r}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
