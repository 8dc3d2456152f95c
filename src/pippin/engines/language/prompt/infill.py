"""Filling a gap between two texts, with the tokens that a model was trained to do it with."""

from dataclasses import dataclass

from pippin.core.errors import ServerError
from pippin.engines.language.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Family:
    """`layout` is written with {prefix} and {suffix}; `marks` must all be tokens of the model."""

    marks: tuple[str, ...]
    layout: str


def _prefix_first(*marks: str) -> Family:
    before, between, after = marks
    return Family(marks, f"{before}{{prefix}}{between}{{suffix}}{after}")


FAMILIES = (
    _prefix_first("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    _prefix_first("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    _prefix_first("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    _prefix_first("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    _prefix_first("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    _prefix_first("▁<PRE>", "▁<SUF>", "▁<MID>"),
    Family(("[PREFIX]", "[SUFFIX]"), "[SUFFIX]{suffix}[PREFIX]{prefix}"),
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
"""Tokens that end a filling beside the usual ones, where a model has them."""


def family(tokenizer: Tokenizer) -> Family | None:
    return next(
        (found for found in FAMILIES if all(tokenizer.single(mark) is not None for mark in found.marks)), None
    )


def infill_prompt(tokenizer: Tokenizer, prefix: str, suffix: str, most: int | None = None) -> list[int]:
    """The tokens of a prompt that asks for what stands between; markers in the texts are read as text.

    Raises `TooLong` for long texts of more than `most` tokens.
    """
    found = family(tokenizer)
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


def ends(tokenizer: Tokenizer) -> frozenset[int]:
    found = (tokenizer.single(text) for text in ENDS)
    return frozenset(token for token in found if token is not None)
