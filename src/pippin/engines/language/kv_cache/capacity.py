"""How many places rows are given."""

from bisect import bisect_left

LENGTH_CLASSES = (2048, 16384)  # rows of a class share arrays, so a long row does not pad short ones
CAPACITY_STEP = 256  # tokens by which a class's arrays grow, at least
STEPS_OF_DOUBLING = 8  # steps in which longer ones grow to twice their size: each copies all of their rows
# Tokens of its coming output that a row is charged for at admission; more is preemption's matter.
GROWTH_CHARGED = 512


def length_class(tokens: int) -> int:
    return bisect_left(LENGTH_CLASSES, tokens)


def rounded(tokens: int) -> int:
    """Places that are allotted for so many tokens."""
    step = max(CAPACITY_STEP, (1 << max(tokens - 1, 0).bit_length()) // (2 * STEPS_OF_DOUBLING))
    return -(-tokens // step) * step


def row_places(length: int, growth: int, slack: int) -> int:
    """Places of an arena in which a row of so many tokens begins, which will grow by up to `growth`."""
    return rounded(length + min(growth, CAPACITY_STEP) + slack + 1)
