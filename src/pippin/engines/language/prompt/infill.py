"""Fill-in-the-middle prompts: a model writes the text between a prefix and a suffix."""

import re

from pippin.core.errors import ServerError
from pippin.engines.language.text.tokenizer import Tokenizer

LAYOUTS = (
    "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
    "<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
    "<fim-prefix>{prefix}<fim-suffix>{suffix}<fim-middle>",
    "<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>",
    "<|code_prefix|>{prefix}<|code_suffix|>{suffix}<|code_middle|>",
    "▁<PRE>{prefix}▁<SUF>{suffix}▁<MID>",
    "[SUFFIX]{suffix}[PREFIX]{prefix}",
)
"""Prompts of the models that have all that stands around `prefix` and `suffix` as tokens."""

ENDS = tuple("<|fim_pad|> <|file_sep|> <|repo_name|> <file_sep> <|file_separator|> ▁<EOT> <|cursor|>".split())
"""Tokens that end an infill besides the end-of-sequence tokens, in models that have them."""


def infill_layout(tokenizer: Tokenizer) -> str | None:
    """The one of `LAYOUTS` that the model was trained with, or None for a model without such tokens."""
    for layout in LAYOUTS:
        marks = re.split(r"\{\w+\}", layout)
        if all(tokenizer.single(mark) is not None for mark in marks if mark):
            return layout
    return None


def infill_prompt(tokenizer: Tokenizer, prefix: str, suffix: str, most: int) -> list[int]:
    """The tokens of a prompt for the text between `prefix` and `suffix`, in which special tokens are read as text.

    Raises `ServerError` for a model that can't infill, and `TooLong` for long texts of more than `most` tokens.
    """
    layout = infill_layout(tokenizer)
    if layout is None:
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
        layout.format(prefix=shield(prefix), suffix=shield(suffix)), most
    )
