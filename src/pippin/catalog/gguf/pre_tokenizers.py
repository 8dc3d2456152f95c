"""How a byte-level tokenizer cuts text before merging, for each name that `tokenizer.ggml.pre` may have.

The values are `normalizer` and `pre_tokenizer` of tokenizer.json as the models' own publishers ship them.
"""

from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
TAIL: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    steps: tuple[Json, ...]
    nfc: bool = False  # text is brought to Unicode's form NFC first
    ignore_merges: bool = False  # a word that is a token is taken whole, whatever the merges say
    bos: bool = False  # a text begins with the BOS token where the file does not say


def _byte_level(cut: bool) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": cut}


def _split(pattern: str) -> tuple[Json, ...]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return cut, _byte_level(False)


_GPT2 = PreTokenizer((_byte_level(True),))
_SINGLE_DIGITS = PreTokenizer(({"type": "Digits", "individual_digits": True}, _byte_level(True)))
_LLAMA3 = PreTokenizer(_split(rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{TAIL}"), ignore_merges=True, bos=True)
_QWEN2_STEPS = _split(rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{TAIL}")

PRE_TOKENIZERS: Final = {
    "gpt-2": _GPT2,
    "olmo": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": PreTokenizer(_QWEN2_STEPS, nfc=True),
    "stablelm2": PreTokenizer(_QWEN2_STEPS, nfc=True),
    "deepseek-r1-qwen": PreTokenizer(_QWEN2_STEPS, bos=True),
    "tekken": PreTokenizer(_split(TEKKEN), ignore_merges=True, bos=True),
}
