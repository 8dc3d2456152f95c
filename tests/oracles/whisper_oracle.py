"""Prints what faster-whisper hears, greedily and in float32: `python whisper_oracle.py .cache/faster-whisper-base`.

`HEARD` in tests/engines/test_transcription.py is its answer (faster-whisper 1.2.1). transformers' greedy decoding
falls into a loop on this recording, so it can't be the judge.
"""

import sys
from pathlib import Path

from faster_whisper import WhisperModel

if __name__ == "__main__":
    model = WhisperModel(sys.argv[1], device="cpu", compute_type="float32")
    segments, _ = model.transcribe(str(Path(__file__).parent.parent / "data" / "speech.flac"), beam_size=1)
    print("".join(segment.text for segment in segments).strip())
