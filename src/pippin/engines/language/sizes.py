"""How many places rows are given."""

from bisect import bisect_left

LENGTH_CLASSES = (2048, 16384)  # rows of a class share arrays, so a long row does not pad short ones
CAPACITY_STEP = 256  # tokens by which a class's arrays grow
# Tokens of its coming output that a row is charged for at admission; more is preemption's matter.
GROWTH_CHARGED = 512


def length_class(tokens: int) -> int:
    return bisect_left(LENGTH_CLASSES, tokens)


def rounded(tokens: int) -> int:
    """Places that are allotted for so many tokens."""
    return -(-tokens // CAPACITY_STEP) * CAPACITY_STEP


def row_places(length: int, growth: int, slack: int) -> int:
    """Places of the arena in which a row of so many tokens begins, which will grow by up to `growth`."""
    return rounded(length + min(growth, CAPACITY_STEP) + slack + 1)
