"""Random texts of a grammar, byte by byte, with a format's markers as special tokens or as plain text."""

import json
import random
import re
from collections.abc import Callable, Sequence

import llguidance
import numpy as np

ENDS = (
    *('"', '"}', "}", "]", ")", "\n]", "\n", ",", "<escape>", '<|"|>', "<|end|>", "]<]minimax[>["),
    *("</parameter>", "\n</parameter>", "</param>", "</atem:parameter>", "</arg_value>"),
    *("</longcat_arg_value>", "</｜DSML｜parameter>", "<|close|>"),
)
"""What ends values: a walk that never took one would go on for ever."""
AFTER = (
    *(
        "</function>",
        "</invoke>",
        "</atem:invoke>",
        "</｜DSML｜invoke>",
        "</tool_call>",
        "</longcat_tool_call>",
    ),
    *("<parameter", "<param", "<atem:parameter", "<｜DSML｜parameter", "<arg_key>", "<longcat_arg_key>"),
)
"""What follows the end of a value, which is a part of the value elsewhere."""
EOS = 256


def special_tokens(markers: Sequence[str]) -> list[str]:
    """Those markers for which a family's tokenizer is likely to have one token."""
    return [
        marker for marker in markers if re.fullmatch(r"</?[^<>\s=]+>|\[/?[A-Z_]+\]|\]<\]minimax\[>\[", marker)
    ]


class Vocabulary:
    """What llguidance asks of a tokenizer: a token for each byte, one for the end, and the special ones."""

    bos_token_id = None
    eos_token_id = EOS

    def __init__(self, special: Sequence[str]) -> None:
        self.special = tuple(dict.fromkeys(special))
        self.special_token_ids = [EOS, *range(EOS + 1, EOS + 1 + len(self.special))]
        self.tokens = [bytes([byte]) for byte in range(256)]
        self.tokens += [name.encode() for name in ("<eos>", *self.special)]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def id(self, text: str) -> int | None:
        return EOS + 1 + self.special.index(text) if text in self.special else None


class Walks:
    """Of one set of special tokens."""

    def __init__(self, special: Sequence[str] = ()) -> None:
        self._vocabulary = Vocabulary(special)
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(self._vocabulary),
            n_vocab=len(self._vocabulary.tokens),
            eos_token=[EOS],
        )
        self.special: Callable[[str], int | None] = self._vocabulary.id
        numbers = np.arange(len(self._vocabulary.tokens))
        self._plain = ((numbers >= 32) & (numbers < 127)) | (numbers == 10) | (numbers > EOS)
        self._known: dict[str, list[int]] = {}
        self._after: list[str] = []  # of the last grammar
        self._compiled: tuple[str, llguidance.LLMatcher] | None = None  # the last one, before its first token

    def matcher(self, source: str) -> llguidance.LLMatcher:
        if self._compiled is None or self._compiled[0] != source:
            whole = json.dumps({"grammars": [{"lark_grammar": source}]})
            matcher = llguidance.LLMatcher(self._tokenizer, whole)
            assert not matcher.is_error(), matcher.get_error() + source
            self._compiled = source, matcher
        return self._compiled[1].deep_copy()

    def admits(self, source: str, text: str) -> bool:
        """Whether the whole text is one of the grammar's."""
        matcher = self.matcher(source)
        tokens = self.tokens(text)
        taken: int = matcher.validate_tokens(tokens)
        return taken == len(tokens) and matcher.consume_tokens(tokens) and bool(matcher.is_accepting())

    def tokens(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._tokens(text)
        return self._known[text]

    def _tokens(self, text: str) -> list[int]:
        found: list[int] = []
        place = 0
        ordered = sorted(self._vocabulary.special, key=len, reverse=True)
        while place < len(text):
            name = next((name for name in ordered if text.startswith(name, place)), None)
            token = self._vocabulary.id(name) if name else None
            found += [token] if token is not None else list(text[place].encode())
            place += len(name) if name else 1
        return found

    def walk(self, source: str, seed: str, *, liked: Sequence[str] = (), limit: int = 4000) -> str:
        """A text that prefers ends to going on, and `liked` texts to others."""
        chance = random.Random(seed)
        matcher = self.matcher(source)
        self._after = [after for after in AFTER if json.dumps(after, ensure_ascii=False) in source]
        row = np.zeros(-(-len(self._vocabulary.tokens) // 32), np.int32)
        tokens: list[int] = []
        whole = 0
        while not matcher.is_stopped() and len(tokens) < limit:
            if matcher.is_accepting():
                whole = len(tokens)
                if chance.random() < 0.2:
                    break
            step = self._phrase(matcher, chance, liked) or [self._pick(matcher, chance, row, tokens)]
            if step == [EOS]:
                break
            assert matcher.consume_tokens(step), matcher.get_error()
            tokens += step
        kept = tokens if matcher.is_accepting() else tokens[:whole]
        return b"".join(self._vocabulary.tokens[token] for token in kept).decode()

    def _phrase(
        self, matcher: llguidance.LLMatcher, chance: random.Random, liked: Sequence[str]
    ) -> list[int] | None:
        if chance.random() < 0.5:
            return None
        text = chance.choice([*liked, *ENDS])
        closes = text.startswith("</") and text in ENDS
        phrases = [self.tokens(f"{text}\n{after}") for after in self._after] if closes else []
        phrases += [self.tokens(text + after) for after in ("\n", "<", "")]
        return next((each for each in phrases if matcher.validate_tokens(each) == len(each)), None)

    def _pick(
        self, matcher: llguidance.LLMatcher, chance: random.Random, row: np.ndarray, tokens: list[int]
    ) -> int:
        """A token that may come next. Numbers get no exponents: few random ones are within the range of numbers."""
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: len(self._vocabulary.tokens)]
        plain = np.flatnonzero(bits & self._plain).tolist()
        if tokens and 48 <= tokens[-1] < 58:
            plain = [token for token in plain if token not in (*b"eE",)] or plain
        return chance.choice(plain or np.flatnonzero(bits[:256]).tolist() or [EOS])
