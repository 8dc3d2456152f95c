"""Recordings to hear in tests."""

import io
import wave

import numpy as np


def wav(seconds: float, seed: int, rate: int = 16000) -> bytes:
    """A file of random noise, one channel of 16 bits."""
    samples = (np.random.default_rng(seed).normal(size=int(rate * seconds)) * 3000).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(rate)
        written.writeframes(samples.tobytes())
    return file.getvalue()
