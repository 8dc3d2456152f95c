"""Tokens with their log probabilities, as OpenAI's chat and responses APIs draw them."""

from collections.abc import Iterable

from msgspec import Struct

from pippin.core.events import Token

LOWEST = -9999.0
"""Stands for a probability of zero, whose logarithm JSON can't hold; the number is OpenAI's."""


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class LogprobsBody(Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


def text_of(raw: bytes) -> str:
    """A part of a character shows as U+FFFD; `bytes` beside it has the truth."""
    return raw.decode("utf-8", "replace")


def finite(logprob: float | None) -> float:
    return LOWEST if logprob is None or not logprob > LOWEST else logprob


def logprobs_of(tokens: Iterable[Token]) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            token=text_of(token.raw),
            logprob=finite(token.logprob),
            bytes=list(token.raw),
            top_logprobs=[
                TopLogprob(token=text_of(other.raw), logprob=finite(other.logprob), bytes=list(other.raw))
                for other in token.top
            ],
        )
        for token in tokens
    ]
