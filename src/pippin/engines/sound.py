"""Audio as bytes, through PyAV: clients' audio is decoded within limits, models' audio is encoded."""

import importlib.util
import io
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pippin.config.errors import install_command
from pippin.core.errors import ServerError
from pippin.core.tasks import FileFormat
from pippin.engines.containers import frames_of, open_container
from pippin.engines.refusals import refused

if TYPE_CHECKING:
    import av

Samples = npt.NDArray[np.float32]

LONGEST_SECONDS = 4 * 3600.0
"""The most seconds of audio that one request may bring."""

CONTAINERS: dict[str, tuple[str, str, str]] = {
    "mp3": ("mp3", "libmp3lame", "fltp"),
    "opus": ("ogg", "libopus", "s16"),
    "aac": ("adts", "aac", "fltp"),
    "flac": ("flac", "flac", "s16"),
    "wav": ("wav", "pcm_s16le", "s16"),
    "pcm": ("s16le", "pcm_s16le", "s16"),
}
"""FFmpeg's container, codec and sample format for each format of speech."""

READ = "wav,w64,mp3,flac,ogg,mov,matroska,aac,aiff,caf,au,amr,mpeg,mpegts,avi,flv,asf"
"""The containers that are read, by FFmpeg's names."""


RATES: Final = (1000, 768_000)
"""The lowest and highest sample rate that is accepted: resampling from beyond them takes minutes."""

MOST_CHANNELS: Final = 64

LOUDEST: Final = 1e4
"""The largest accepted sample of a file of floats, where 1 is full scale; larger ones give NaN in a model."""


def require_extra() -> None:
    """Raises `ServerError("load_failed")` where mlx-audio or PyAV, the packages of the extra `audio`, is missing."""
    packages = {"mlx_audio": "mlx-audio", "av": "PyAV (av)"}
    missing = [name for module, name in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        needed = " and ".join(missing)
        raise ServerError(
            "load_failed", f"Models that hear or speak need {needed}: {install_command('audio')}"
        )


def decode(data: bytes, rate: int, *, param: str, longest: float = LONGEST_SECONDS) -> Samples:
    """Decode audio to mono samples in [-1, 1], `rate` in a second. Damaged parts are left out, as FFmpeg does.

    Raises `ServerError` naming `param` for bytes that are no audio or empty, and for audio longer than `longest`
    seconds.
    """
    import av

    try:
        with open_container(data, format_whitelist=READ) as container:
            if not container.streams.audio:
                raise refused(param, "holds no audio.")
            samples = _read(frames_of(container, container.streams.audio[0]), rate, param, longest)
    except av.FFmpegError:
        samples = np.zeros(0, np.float32)
    if samples.size == 0:
        what = "holds no sound that can be decoded; send a wav, mp3, flac, ogg, m4a or webm file."
        if data[4:8] == b"ftyp" and b"moov" not in data:
            what = "is an mp4 or m4a file without its end, where its index (moov) stands; send it whole."
        raise refused(param, what)
    if not np.abs(samples).max() <= LOUDEST:  # also refuses NaN
        raise refused(
            param, "holds samples that are no numbers, or far beyond 1; send sound between -1 and 1."
        )
    return samples


def _read(frames: "Iterator[av.AudioFrame]", rate: int, param: str, longest: float) -> Samples:
    pieces: list[Samples] = []
    length = 0
    for piece in _resampled(frames, rate, param):
        pieces.append(piece)
        length += piece.size
        if length > longest * rate:
            raise refused(param, f"lasts longer than {longest:.0f} seconds; send less.", "too_large")
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.float32)


def _resampled(frames: "Iterator[av.AudioFrame]", rate: int, param: str) -> Iterator[Samples]:
    """Mono samples of frames, which may change their form: two files that were joined are one sound."""
    import av

    resampler, form = None, None
    for frame in frames:
        if not RATES[0] <= frame.sample_rate <= RATES[1] or frame.layout.nb_channels > MOST_CHANNELS:
            raise refused(
                param,
                f"has {frame.sample_rate} samples a second in {frame.layout.nb_channels} channels; send {RATES[0]} to "
                f"{RATES[1]} in at most {MOST_CHANNELS}.",
            )
        given = frame.format.name, frame.layout.name, frame.sample_rate
        if given != form:
            form = given
            yield from _samples(resampler, None)
            # FFmpeg's own mono of floats may go beyond full scale.
            resampler = av.AudioResampler(format="flt", layout=frame.layout, rate=rate)
        # Times may jump where something is damaged or joined.
        frame.pts = None
        yield from _samples(resampler, frame)
    yield from _samples(resampler, None)


def _samples(resampler: "av.AudioResampler | None", frame: "av.AudioFrame | None") -> Iterator[Samples]:
    """What a resampler gives for a frame, or at its end: the mean of the channels."""
    for resampled in resampler.resample(frame) if resampler is not None else ():
        yield resampled.to_ndarray().reshape(-1, resampled.layout.nb_channels).mean(axis=1)


class SpeechEncoder:
    """Encodes one stream of samples piece by piece. The format `pcm` is 16-bit little-endian without a container."""

    def __init__(self, format: FileFormat, rate: int) -> None:
        """`rate` is that of the samples fed, and of the sound if its format has that rate; else the next higher one."""
        import av

        self._rate = rate
        self._format = format
        self._buffer = io.BytesIO()
        self._sent = 0
        self._position = 0
        container, codec, sample_format = CONTAINERS[format]
        # Ogg would gather a second in a page.
        paged = {"page_duration": "200000"} if container == "ogg" else {}
        self._container = av.open(self._buffer, mode="w", format=container, options=paged)
        known = av.Codec(codec, "w").audio_rates or (rate,)
        taken = min((each for each in known if each >= rate), default=max(known))
        self._stream = self._container.add_stream(codec, rate=taken)
        self._stream.layout = "mono"
        self._resampler = av.AudioResampler(format=sample_format, layout="mono", rate=taken)

    def feed(self, samples: Samples) -> bytes:
        """Encode mono samples in [-1, 1], and return the bytes that are complete by now."""
        import av

        whole = (np.clip(samples, -1.0, 1.0) * 32767).astype("<i2")
        frame = av.AudioFrame.from_ndarray(whole.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate = self._rate
        frame.time_base = Fraction(1, self._rate)
        frame.pts = self._position
        self._position += whole.size
        for resampled in self._resampler.resample(frame):
            self._container.mux(self._stream.encode(resampled))
        return self._ready() if self._format != "wav" else b""

    def finish(self) -> bytes:
        """End the stream and return the rest of its bytes: all of a wav file, whose header holds its length."""
        for resampled in self._resampler.resample(None):
            self._container.mux(self._stream.encode(resampled))
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._ready()

    def _ready(self) -> bytes:
        data = self._buffer.getvalue()[self._sent :]
        self._sent += len(data)
        return data
