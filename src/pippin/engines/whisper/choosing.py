"""Which token of a Whisper model comes next, by the settings of its folder and OpenAI's rules for times."""

import math
import zlib
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_audio.stt.models.whisper.decoding import DecodingTask, LogitFilter, RepetitionPenalty

from pippin.engines.whisper.settings import Settings


class Chooser(LogitFilter):  # type: ignore[misc]  # untyped in mlx-audio
    """Forbids tokens as transformers does (`WhisperTimeStampLogitsProcessor`). mlx-audio's own rule weighs times that
    are forbidden, so that a `!` stands where no word may, and lets times run backwards."""

    def __init__(self, settings: Settings, tokenizer: Any, begin: int, rows: int) -> None:
        """`begin`: the tokens before the first that is drawn; `rows`: those of the vocabulary."""
        self._settings, self._begin = settings, begin
        self._times, self._end = tokenizer.timestamp_begin, tokenizer.eot
        self._always = np.zeros(rows, np.float32)
        self._always[[*settings.biases]] = [*settings.biases.values()]
        self._always[tokenizer.no_timestamps] = -np.inf

    def apply(self, logits: mx.array, tokens: mx.array) -> mx.array:
        """The logits [1, vocabulary] of what follows these tokens [1, tokens]."""
        drawn: list[int] = np.array(tokens[0])[self._begin :].tolist()
        times, mask = self._times, self._always.copy()
        are_times = [token >= times for token in drawn]
        closes = are_times[-2:] == [False, True]
        if closes:
            mask[: self._end] = -np.inf
        elif are_times[-1:] == [True]:
            mask[times:] = -np.inf  # a time that begins a piece is followed by its text
        if any(are_times):
            mask[times : max(drawn) + (not closes)] = -np.inf
        if not drawn:
            mask[[*self._settings.first]] = -np.inf
            mask[:times] = -np.inf
            if self._settings.latest is not None:
                mask[times + self._settings.latest + 1 :] = -np.inf
        logits = logits + mx.array(mask)
        words, stamps = logits[:, :times], logits[:, times:]
        is_time = mx.logsumexp(stamps, axis=-1, keepdims=True) > words.max(axis=-1, keepdims=True)
        return mx.concatenate([mx.where(is_time, -mx.inf, words), stamps], axis=-1)


def decode(model: Any, mel: mx.array, options: Any, settings: Settings) -> Any:
    """mlx-audio's `decode` of one window, with tokens chosen so."""
    task = DecodingTask(model, options)
    penalty = settings.repetition_penalty
    penalties = [RepetitionPenalty(penalty)] if penalty not in (None, 1) else []
    chooser = Chooser(settings, task.tokenizer, task.sample_begin, model.dims.n_vocab)
    task.logit_filters = [*penalties, chooser]
    result = task.run(mel[None])[0]
    if "compression_ratio_threshold" not in settings.arguments:
        return result
    ends = [task.tokenizer.eot] * (len(result.tokens) < min(task.sample_len, task.n_ctx - task.sample_begin))
    return replace(result, compression_ratio=ratio_of([*result.tokens, *ends], model.dims.n_vocab))


def ratio_of(tokens: list[int], rows: int) -> float:
    """How often tokens repeat themselves, as transformers measures it, whose thresholds stand in
    generation_config.json: by their ids, and not by their text as OpenAI's code does. `rows` has the vocabulary."""
    width = int(math.log2(rows) / 8) + 1
    data = b"".join(token.to_bytes(width, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))
