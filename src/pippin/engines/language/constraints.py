"""What the output must look like: grammars, compiled beside the step loop, and their token masks."""

from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher


@dataclass(frozen=True, eq=False)
class CompiledGrammar:
    """A grammar at its start; each row runs on a copy."""

    start: LLMatcher
    after_thinking: bool = True

    def matcher(self) -> "GrammarMatcher":
        return GrammarMatcher(self.start.deep_copy())


class GrammarMatcher:
    """Where one row stands in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def allowed(self, tokens: list[int]) -> int:
        return int(self._matcher.validate_tokens(tokens))

    def fill(self, row: np.ndarray) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.size * row.itemsize)
