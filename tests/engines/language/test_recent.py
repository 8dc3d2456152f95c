"""What was used last is kept, as far as there is room."""

from pippin.engines.recent import Recent


def test_the_values_that_were_not_used_for_longest_go() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == (1, None, 3)


def test_all_values_together_stay_within_their_size() -> None:
    recent: Recent[str, bytes] = Recent(most_size=10, size=len)
    recent.put("a", bytes(6))
    recent.put("a", bytes(4))
    recent.put("b", bytes(6))
    assert recent.values() == [bytes(4), bytes(6)]
    recent.put("c", bytes(5))
    assert recent.values() == [bytes(5)]
    recent.put("too large", bytes(11))
    assert recent.values() == []
