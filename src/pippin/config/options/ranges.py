"""An option that is a number, or a range within which it follows the load: `3`, `1-6`."""

from typing import Annotated, Final

from msgspec import Meta

RANGE: Final = "^[1-9][0-9]?-[1-9][0-9]?$"
MOST: Final = 64

NumberOrRange = Annotated[int, Meta(ge=1, le=MOST)] | Annotated[str, Meta(pattern=RANGE)]


def bounds(value: NumberOrRange) -> tuple[int, int]:
    """The lower and upper end of a range; both are the number itself for a number."""
    if isinstance(value, int):
        return value, value
    least, _, most = value.partition("-")
    return int(least), int(most)


def is_rising(value: NumberOrRange) -> bool:
    """Whether a range does not decrease, and stays within the allowed maximum."""
    least, most = bounds(value)
    return least <= most <= MOST
