"""Fill-in-the-middle prompts: a model writes the text between a prefix and a suffix."""

from dataclasses import dataclass

from pippin.core.errors import ServerError
from pippin.engines.language.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class InfillFormat:
    """A format of fill-in-the-middle prompts, for models that have all of its `marks` as tokens.

    `layout` is a format string with the fields `prefix` and `suffix`.
    """

    marks: tuple[str, ...]
    layout: str


def _prefix_first(*marks: str) -> InfillFormat:
    before, between, after = marks
    return InfillFormat(marks, f"{before}{{prefix}}{between}{{suffix}}{after}")


FORMATS = (
    _prefix_first("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    _prefix_first("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    _prefix_first("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    _prefix_first("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    _prefix_first("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    _prefix_first("▁<PRE>", "▁<SUF>", "▁<MID>"),
    InfillFormat(("[PREFIX]", "[SUFFIX]"), "[SUFFIX]{suffix}[PREFIX]{prefix}"),
)

ENDS = (
    "<|fim_pad|>",
    "<|file_sep|>",
    "<|repo_name|>",
    "<file_sep>",
    "<|file_separator|>",
    "▁<EOT>",
    "<|cursor|>",
)
"""Tokens that end an infill besides the end-of-sequence tokens, in models that have them."""


def infill_format(tokenizer: Tokenizer) -> InfillFormat | None:
    """The format that the model was trained with, or None for a model without such tokens."""
    return next(
        (found for found in FORMATS if all(tokenizer.single(mark) is not None for mark in found.marks)), None
    )


def infill_prompt(tokenizer: Tokenizer, prefix: str, suffix: str, most: int | None = None) -> list[int]:
    """The tokens of a prompt for the text between `prefix` and `suffix`, in which special tokens are read as text.

    Raises `ServerError` for a model that can't infill, and `TooLong` for long texts of more than `most` tokens.
    """
    found = infill_format(tokenizer)
    if found is None:
        raise ServerError(
            "unsupported",
            "This model has no fill-in-the-middle tokens, so 'suffix' can't be used with it. Leave it out.",
            "suffix",
        )
    begin = (
        [tokenizer.bos] if tokenizer.bos is not None and tokenizer.encode("", add_special_tokens=True) else []
    )
    shield = tokenizer.literals.shield
    return begin + tokenizer.literals.encode(
        found.layout.format(prefix=shield(prefix), suffix=shield(suffix)), most
    )


def end_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of `ENDS` that the model has."""
    found = (tokenizer.single(text) for text in ENDS)
    return frozenset(token for token in found if token is not None)
