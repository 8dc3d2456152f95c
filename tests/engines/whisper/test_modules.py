"""What depends on the sound alone is computed once, with mlx-audio's numbers."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_audio.stt.models.whisper.whisper import AudioEncoder, Model, ModelDimensions

from pippin.engines.whisper.modules import compute_once


@pytest.fixture
def model() -> Any:
    made = Model(ModelDimensions(4, 10, 16, 2, 1, 30, 12, 16, 2, 2), mx.float32)
    made.decoder.positional_embedding = mx.random.normal((12, 16))
    return made


def test_tokens_attend_to_the_sound_as_in_mlx_audio(model: Any) -> None:
    heard, tokens = mx.random.normal((1, 10, 16)), mx.array([[1, 2, 3]])
    expected = model.decoder(tokens, heard)
    compute_once(model)
    found = model.decoder(tokens, heard)
    assert mx.allclose(found[0], expected[0], atol=1e-5)
    assert all(mx.allclose(one, two, atol=1e-5) for one, two in zip(found[2], expected[2], strict=True))
    before = [cross for _, cross in found[1]]
    assert [array.shape for array in before[0]] == [(1, 2, 8, 10), (1, 2, 10, 8)]
    after = model.decoder(mx.array([[4]]), heard, kv_cache=found[1])
    whole = model.decoder(mx.array([[1, 2, 3, 4]]), heard)
    assert mx.allclose(after[0][:, -1], whole[0][:, -1], atol=1e-5)
    assert all(cross is first for (_, cross), first in zip(after[1], before, strict=True))


def test_a_window_is_encoded_once(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    own = AudioEncoder.__call__
    monkeypatch.setattr(AudioEncoder, "__call__", lambda self, x: calls.append(x) or own(self, x))
    compute_once(model)
    one, other = mx.random.normal((2, 1, 20, 4))
    found = [model.embed_audio(sound) for sound in (one, one + 0, other, one)]
    assert len(calls) == 3
    assert mx.array_equal(found[0], found[1])
    assert not mx.allclose(found[1], found[2])
    assert mx.array_equal(found[0], found[3])
    assert "_last" not in model.encoder.parameters()
