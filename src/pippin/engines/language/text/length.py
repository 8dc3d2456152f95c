"""Refuses or cuts a text that is too long while it is read, instead of when all of it has been tokenized.

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
SHORTEST: Final = 4096  # characters
OF_A_WORD: Final = 128
"""Tokens at the end of a cut text that may be others than in the whole: a word of more than 100 letters is one unknown
token to BERT's tokenizers, and what a cut leaves of it may be as many tokens as letters."""
AT_A_CUT: Final = 16  # tokens that a cut in the midst of a word may have made more


class TooLong(Exception):
    """A text has more tokens than may be: `least` of them, or more."""

    def __init__(self, least: int) -> None:
        super().__init__(f"the text has {least} tokens or more")
        self.least = least


def beginning(backend: tokenizers.Tokenizer, text: str, most: int) -> str:
    """As much of a long text as its first `most` tokens need, and more; a text of fewer tokens is returned whole."""
    size = max(SHORTEST, most * LIKELY)
    while size < len(text):
        tokens = backend.encode_batch_fast([text[:size]], add_special_tokens=False)[0].ids
        if len(tokens) > most + OF_A_WORD:
            return text[:size]
        size *= 2
    return text


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
