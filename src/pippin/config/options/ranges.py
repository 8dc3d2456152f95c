"""An option that is a number, or a range of them from least to most that follows the load: `3`, `1-6`."""

from typing import Annotated, Final

from msgspec import Meta

RANGE: Final = "^[1-9][0-9]?-[1-9][0-9]?$"
MOST: Final = 64

NumberOrRange = Annotated[int, Meta(ge=1, le=MOST)] | Annotated[str, Meta(pattern=RANGE)]


def bounds(value: NumberOrRange) -> tuple[int, int]:
    """The least and the most of a value; for a number both are the number."""
    if isinstance(value, int):
        return value, value
    least, _, most = value.partition("-")
    return int(least), int(most)


def is_rising(value: NumberOrRange) -> bool:
    """Whether a range ends where it began or above, and not above what any number may be."""
    least, most = bounds(value)
    return least <= most <= MOST
