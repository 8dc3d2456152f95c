"""The JSON of `/metrics` under the profile of mlx_vlm.server."""

import pytest

from pippin.api.telemetry.recent import window_rate

STEADY = [(number, number / 10) for number in range(1, 101)]  # ten tokens a second
SLOWER = [*STEADY, *((100 + number, 10 + number / 2) for number in range(1, 33))]  # then two


@pytest.mark.parametrize(
    ("passed", "window", "first", "last"),
    [
        (STEADY, 32, 10.0, 10.0),
        (SLOWER, 32, 10.0, 2.0),
        (SLOWER, 64, 10.0, 64 / (32 / 10 + 32 / 2)),
        ([(1, 0.0), (3, 0.5)], 32, 4.0, 4.0),
        ([(7, 1.0)], 32, None, None),
        ([], 64, None, None),
    ],
)
def test_the_speed_of_the_first_and_last_tokens(
    passed: list[tuple[int, float]], window: int, first: float | None, last: float | None
) -> None:
    assert window_rate(passed, window) == first
    assert window_rate(passed, window, last=True) == (None if last is None else pytest.approx(last, abs=0.01))
