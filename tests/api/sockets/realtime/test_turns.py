"""When a turn begins and ends, by probabilities that the test gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.api.sockets.realtime.session import ServerVad
from pippin.api.sockets.realtime.turns import WINDOW, WINDOW_MS, Started, Stopped, TurnDetector


def heard(probabilities: list[float], begin: int = 0, **fields: int | float) -> list[Started | Stopped]:
    waiting = list(reversed(probabilities))
    detector = TurnDetector(ServerVad(**fields), lambda samples: waiting.pop(), begin)  # type: ignore[arg-type]
    return detector.feed(np.zeros(WINDOW * len(probabilities), np.float32))


def test_speech_begins_with_two_loud_windows_and_the_padding_before_them() -> None:
    assert heard([0.0] * 20 + [0.9] * 2) == [Started(20 * WINDOW_MS - 300)]
    assert heard([0.0] * 20 + [0.9, 0.0] * 9) == []
    assert heard([0.9] * 3) == [Started(0)]


def test_it_ends_after_silence() -> None:
    events = heard([0.9] * 10 + [0.0] * 20, silence_duration_ms=320)
    assert events == [Started(0), Stopped(20 * WINDOW_MS)]
    assert heard([0.9] * 10 + [0.0] * 9, silence_duration_ms=320) == [Started(0)]


def test_what_is_a_little_quieter_than_the_threshold_goes_on() -> None:
    assert heard([0.9] * 10 + [0.4] * 50, silence_duration_ms=320) == [Started(0)]
    assert len(heard([0.9] * 10 + [0.3] * 50, silence_duration_ms=320)) == 2


def test_moments_count_from_the_first_sound_of_the_connection() -> None:
    assert heard([0.0] * 20 + [0.9] * 2, begin=5000) == [Started(5000 + 20 * WINDOW_MS - 300)]


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_the_thresholds_at_the_ends(threshold: float) -> None:
    assert bool(heard([0.5] * 4, threshold=threshold)) == (threshold == 0.0)


@given(st.lists(st.sampled_from([0.0, 0.4, 1.0]), max_size=80), st.lists(st.integers(1, 2000), max_size=30))
def test_it_does_not_matter_how_sound_is_cut(probabilities: list[float], cuts: list[int]) -> None:
    whole = heard(list(probabilities))
    waiting = list(reversed(probabilities))
    detector = TurnDetector(ServerVad(), lambda samples: waiting.pop())
    samples = np.zeros(WINDOW * len(probabilities), np.float32)
    found: list[Started | Stopped] = []
    for cut in cuts:
        found += detector.feed(samples[:cut])
        samples = samples[cut:]
    assert found + detector.feed(samples) == whole
    moments = [event.at for event in whole]
    assert moments == sorted(moments)
    assert all(type(event) is (Started, Stopped)[number % 2] for number, event in enumerate(whole))
