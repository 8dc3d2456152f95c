"""Refuses a text that is too long while it is read, instead of when all of it has been tokenized.

A tokenizer of 50,000 words takes about 100 bytes of memory for each byte of text, and two seconds for each megabyte
(measured with SmolLM2's on 30 MB of English: 63 s, 2.8 GB). So a text that can hardly fit is tokenized in pieces first,
until their tokens are more than may be. Only then nothing is known of the rest, which is never looked at.
"""

from typing import Final

import tokenizers

PIECE: Final = 64 << 10  # characters
LIKELY: Final = (
    6  # characters of a token in an ordinary text, at most: below that a text is tokenized at once
)
AT_A_CUT: Final = 16  # tokens that a cut in the midst of a word may have made more


class TooLong(Exception):
    """A text has more tokens than may be: `least` of them, or more."""

    def __init__(self, least: int) -> None:
        super().__init__(f"the text has {least} tokens or more")
        self.least = least


def check_length(backend: tokenizers.Tokenizer, text: str, most: int | None) -> None:
    """Raises `TooLong` for a long text that has more than `most` tokens; `None` is no limit."""
    if most is None or len(text) <= max(PIECE, most * LIKELY):
        return
    count = 0
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        count += max(0, len(backend.encode_batch_fast([piece], add_special_tokens=False)[0].ids) - AT_A_CUT)
        if count > most:
            raise TooLong(count)
