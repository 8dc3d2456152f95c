"""Text into speech: `python speech.py [FILE.wav]`."""

import os
import sys
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))
VOICE = os.environ.get("PIPPIN_VOICE", "alba")

file = Path(sys.argv[1] if len(sys.argv) > 1 else "speech.wav")
spoken = client.audio.speech.create(model=MODEL, voice=VOICE, input="Good morning.", response_format="wav")
file.write_bytes(spoken.content)
print(f"{file}: {len(spoken.content)} bytes")
