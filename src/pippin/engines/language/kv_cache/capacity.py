"""How much capacity slots are given, in tokens."""

from bisect import bisect_left

LENGTH_CLASSES = (2048, 16384)  # sequences of a class share arrays, so a long one does not pad short ones
CAPACITY_STEP = 256  # tokens by which a class's arrays grow, at least
STEPS_OF_DOUBLING = (
    8  # steps in which longer ones grow to twice their size: each copies all of their sequences
)
# Tokens yet to be generated that a sequence is charged for at admission; more is preemption's matter.
GROWTH_CHARGED = 512


def length_class(tokens: int) -> int:
    return bisect_left(LENGTH_CLASSES, tokens)


def rounded(tokens: int) -> int:
    """The capacity that is allotted for so many tokens."""
    step = max(CAPACITY_STEP, (1 << max(tokens - 1, 0).bit_length()) // (2 * STEPS_OF_DOUBLING))
    return -(-tokens // step) * step


def slot_capacity(length: int, growth: int, slack: int) -> int:
    """The capacity of the slots that a sequence of so many tokens joins, which may grow by up to `growth`."""
    return rounded(length + min(growth, CAPACITY_STEP) + slack + 1)
