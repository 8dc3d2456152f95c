"""Speech into text: `python transcription.py [RECORDING]`. Without one, a second of silence is sent."""

import io
import os
import sys
import wave
from pathlib import Path

from openai import OpenAI

URL = os.environ.get("PIPPIN_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("PIPPIN_MODEL", "default")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("PIPPIN_API_KEY", "none"))


def silence() -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(bytes(2 * 16_000))
    return written.getvalue()


recording = Path(sys.argv[1]) if len(sys.argv) > 1 else None
content = (recording.name, recording.read_bytes()) if recording else ("silence.wav", silence())
heard = client.audio.transcriptions.create(model=MODEL, file=content, response_format="verbose_json")
for segment in heard.segments:
    print(f"{segment.start:6.2f} to {segment.end:6.2f}  {segment.text}")
print("text:", heard.text)
