"""A text that a regular expression or a grammar admits, found by walking at random through what it allows next."""

import json
import random

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from pippin.core.errors import ServerError
from pippin.core.requests import Grammar, Regex
from pippin.engines.language.constraints.grammar import source_of

WALKS = 8
STEPS = 2000  # bytes of one walk


def matching(wanted: Regex | Grammar) -> str:
    """The same text for the same format. Raises `ServerError` for one that can't be compiled, or that admits nothing
    short."""
    tokens = LLTokenizer("byte")
    source = json.dumps({"grammars": [source_of(wanted, "response_format")]})
    start = LLMatcher(tokens, source, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if start.is_error():
        reason = " ".join(start.get_error().split())[:500]
        raise ServerError("invalid_request", f"The grammar can't be compiled: {reason}", "response_format")
    for seed in range(WALKS):
        found = _walked(start.deep_copy(), random.Random(seed), tokens.eos_token)
        if found is not None:
            return found
    raise ServerError("unsupported", "The scripted model finds no text for this grammar.", "response_format")


def _walked(matcher: LLMatcher, chance: random.Random, end: int) -> str | None:
    """A text at whose end the grammar may stop; None for a walk that went on for too long."""
    said = bytearray()
    for _ in range(STEPS):
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        if not allowed or end in allowed:
            return said.decode()
        readable = [byte for byte in allowed if 32 <= byte < 127]
        letters = [byte for byte in readable if chr(byte).isalnum()]
        byte = chance.choice(letters if letters and chance.random() < 0.5 else readable or allowed)
        if not matcher.consume_token(byte):
            return None
        said.append(byte)
        if matcher.is_stopped():
            return said.decode()
    return None
