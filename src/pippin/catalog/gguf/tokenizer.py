"""Makes tokenizer.json, tokenizer_config.json and generation_config.json from a GGUF file's metadata."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gguf import TokenType
from msgspec import Struct
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pippin.catalog.gguf.reader import COUNT, Metadata
from pippin.core.errors import ServerError

Json = dict[str, Any]
SPACE: Final = "▁"  # SentencePiece's substitute for a space
TEMPLATE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
ENDS: Final = tuple(
    (
        "<|im_end|> <|eot_id|> <|end|> <end_of_turn> <turn|> <|eom_id|> <EOT> _<EOT> [EOT] <|endoftext|> "
        "<|end_of_text|> <｜end▁of▁sentence｜> <|return|> <|call|>"
    ).split()
)
"""The tokens that end an answer whatever the file says of them, as in llama.cpp."""
MARKER: Final = re.compile(r"<\|[^<>|\s]+\|>|<｜[^<>｜\s]+｜>|<start_of_turn>|<\|turn>")
"""Such and other marks of a conversation. Some files have them as ordinary text, which no prompt is written with."""
LONGEST_MERGED: Final = 256
"""Longest token, in characters, for which merges are searched; the work grows with the square of the length."""

CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
TAIL: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class PreTokenizer(Struct, frozen=True):
    steps: tuple[pre_tokenizers.PreTokenizer, ...]
    nfc: bool = False
    """Text is first normalised to Unicode's NFC."""
    ignore_merges: bool = False
    """A word that is a token is kept whole, whatever the merges say."""
    bos: bool = False
    """Text begins with the BOS token if the file does not say."""


def _byte_step(cut: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut)


def _split(pattern: str) -> tuple[pre_tokenizers.PreTokenizer, ...]:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated"), _byte_step(False)


_GPT2 = PreTokenizer((_byte_step(True),))
_SINGLE_DIGITS = PreTokenizer((pre_tokenizers.Digits(individual_digits=True), _byte_step(True)))
_LLAMA3 = PreTokenizer(_split(rf"{CONTRACTIONS}|{WORDS}|\p{{N}}{{1,3}}|{TAIL}"), ignore_merges=True, bos=True)
_QWEN2_STEPS = _split(rf"{CONTRACTIONS}|{WORDS}|\p{{N}}|{TAIL}")

PRE_TOKENIZERS: Final = {
    **dict.fromkeys(("gpt-2", "olmo"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), _SINGLE_DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "stablelm2"), PreTokenizer(_QWEN2_STEPS, nfc=True)),
    "deepseek-r1-qwen": PreTokenizer(_QWEN2_STEPS, bos=True),
    "tekken": PreTokenizer(_split(TEKKEN), ignore_merges=True, bos=True),
}
"""How a byte-level tokenizer splits text before merging, for each value of `tokenizer.ggml.pre`.

The values are `normalizer` and `pre_tokenizer` of tokenizer.json as published with the models.
"""


class TokenizerFiles(Struct, frozen=True):
    tokenizer: Tokenizer
    config: Json
    generation: Json
    tokens: int


def convert_tokenizer(metadata: Metadata) -> TokenizerFiles:
    """Convert the file's tokenizer. Raises `ServerError` unless it is byte-level BPE or SentencePiece's BPE."""
    vocabulary = _Vocabulary(metadata)
    match metadata.get("tokenizer.ggml.model", str):
        case "gpt2":
            tokenizer, begins = _byte_level(metadata, vocabulary)
        case "llama":
            tokenizer, begins = _sentencepiece(metadata, vocabulary)
        case other:
            raise metadata.unsupported(
                f"its tokenizer is of the kind {other[:40]!r}; gpt2 and llama are understood"
            )
    add_bos = metadata.find("tokenizer.ggml.add_bos_token", bool)
    add_bos = begins if add_bos is None else add_bos
    if metadata.find("tokenizer.ggml.add_eos_token", bool):
        raise metadata.unsupported("it wants an end token behind every prompt, which no chat model does")
    tokenizer.add_tokens(vocabulary.added())
    bos = vocabulary.find("bos")
    if add_bos and bos is not None:
        first = vocabulary.tokens[bos]
        try:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[first, "$A:0"],
                pair=[first, "$A:0", f"{first}:1", "$B:1"],
                special_tokens=[(first, bos)],
            )
        except ValueError:
            raise metadata.unsupported(f"no text can begin with its bos token {first[:40]!r}") from None
    return TokenizerFiles(
        tokenizer=tokenizer,
        config=_config(metadata, vocabulary, add_bos),
        generation=_generation(vocabulary),
        tokens=len(vocabulary.tokens),
    )


class _Vocabulary:
    """The tokens by id, and the special ones among them."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self.tokens = metadata.get("tokenizer.ggml.tokens", list[str])
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise metadata.unsupported("a token stands in its vocabulary twice")
        given = metadata.find("tokenizer.ggml.token_type", list[float])
        types = given or [TokenType.NORMAL] * len(self.tokens)
        if len(types) != len(self.tokens):
            raise metadata.unsupported("its vocabulary and the list of token types differ in length")
        self.types = [
            TokenType.CONTROL
            if number == TokenType.NORMAL and (token in ENDS or MARKER.fullmatch(token))
            else int(number)
            for token, number in zip(self.tokens, types, strict=True)
        ]

    def find(self, role: str) -> int | None:
        number = self.metadata.find(f"tokenizer.ggml.{role}_token_id", COUNT)
        if number is not None and number >= len(self.tokens):
            raise self.metadata.unsupported(f"its {role} token is not in its vocabulary")
        return number

    def added(self) -> list[AddedToken]:
        """Tokens that are matched in a text before anything else."""
        return [
            AddedToken(token, normalized=False, special=token_type != TokenType.USER_DEFINED)
            for token, token_type in zip(self.tokens, self.types, strict=True)
            if token_type in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED) and token
        ]


def _byte_level(metadata: Metadata, vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    name = metadata.find("tokenizer.ggml.pre", str)
    pre = PRE_TOKENIZERS.get(name or "")
    if pre is None:
        known = ", ".join(PRE_TOKENIZERS)
        what = "it does not say" if name is None else f"{name[:40]!r} is unknown"
        raise metadata.unsupported(f"how its tokenizer cuts text into words, {what} (known: {known})")
    merges = []
    for line in metadata.get("tokenizer.ggml.merges", list[str]):
        left, space, right = line.partition(" ")
        if not space or not {left, right, left + right} <= vocabulary.ids.keys():
            message = f"{metadata.file} cannot be imported: its tokenizer merges {line[:60]!r}, which are not tokens."
            raise ServerError("invalid_request", message, "path")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(pre.steps))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre.bos


def _sentencepiece(metadata: Metadata, vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    scores = metadata.find("tokenizer.ggml.scores", list[float])
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise metadata.unsupported("its tokenizer has no score for each token")
    unknown = vocabulary.find("unknown")
    model = models.BPE(
        vocabulary.ids,
        _merges_from_scores(vocabulary.ids, scores),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefixed = metadata.find("tokenizer.ggml.add_space_prefix", bool) is not False
    before, after = ([normalizers.Prepend(SPACE)], [decoders.Strip(" ", 1, 0)]) if prefixed else ([], [])
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return tokenizer, True


def _merges_from_scores(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of tokens whose concatenation is a token: best score first, equal scores in order of ids.

    SentencePiece always merges the neighbours whose concatenation has the highest score. A rank-based BPE does the same
    if its merges are listed in order of those scores.
    """
    found: list[tuple[float, int, int, int, str, str]] = []
    for token, number in ids.items():
        if not 1 < len(token) <= LONGEST_MERGED:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            first, second = ids.get(left), ids.get(right)
            if first is not None and second is not None:
                found.append((-scores[number], number, first, second, left, right))
    found.sort(key=lambda merge: merge[:4])
    return [(left, right) for *_, left, right in found]


def _config(metadata: Metadata, vocabulary: _Vocabulary, add_bos: bool) -> Json:
    config: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get("{arch}.context_length", COUNT),
    }
    for name, role in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = vocabulary.find(role)
        if number is not None:
            config[f"{name}_token"] = vocabulary.tokens[number]
    template = metadata.find("tokenizer.chat_template", str)
    named = [
        {"name": name, "template": text}
        for name in metadata.find("tokenizer.chat_templates", list[str]) or []
        if TEMPLATE_NAME.fullmatch(name) and name != "default"
        if (text := metadata.find(f"tokenizer.chat_template.{name}", str)) is not None
    ]
    if template is not None:
        config["chat_template"] = [{"name": "default", "template": template}, *named] if named else template
    return config


def _generation(vocabulary: _Vocabulary) -> Json:
    """Generation settings: every token that ends an answer (end of text, of turn, of message), BOS and padding."""
    named = [vocabulary.ids.get(token) for token in ENDS]
    if "<|return|>" in vocabulary.ids:  # Harmony, where <|end|> is between the messages of one answer
        named.remove(vocabulary.ids.get("<|end|>"))
    ends = [*(vocabulary.find(role) for role in ("eos", "eot", "eom")), *named]
    unique = list(dict.fromkeys(end for end in ends if end is not None))
    generation: Json = {"eos_token_id": unique[0] if len(unique) == 1 else unique} if unique else {}
    for name, role in (("bos_token_id", "bos"), ("pad_token_id", "padding")):
        if (number := vocabulary.find(role)) is not None:
            generation[name] = number
    return generation
