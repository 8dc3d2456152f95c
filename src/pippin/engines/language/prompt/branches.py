"""Tokenizes the questions of decisions, and their labels, as they stand in whole prompts, without reading these again.

A marker of the template is a token whatever stands beside it, so the tokens from the last one on are those of the whole
prompt.
"""

from collections.abc import Sequence
from itertools import pairwise

from pippin.core.errors import ServerError
from pippin.engines.language.job import Branch
from pippin.engines.language.prefix_cache.cache import shared_length
from pippin.engines.language.text.tokenizer import Literals


class Brancher:
    def __init__(self, literals: Literals, opening: str, answering: str) -> None:
        """`opening` and `answering` are what the template writes before a question, and between it and its answer."""
        self._literals = literals
        self._opening, self._answering = opening, answering
        self._cut = literals.last_marker(opening)
        # Tokens of what follows the last marker: many labels are alike.
        self._known: dict[str, list[int]] = {}

    def whole(self, question: str) -> str:
        return self._opening + question + self._answering

    def before(self, tokens: list[int], question: str) -> list[int]:
        """The tokens of a whole prompt to which those of branches are added. Raises `ServerError`."""
        own = self._literals.encode(self.whole(question)[self._cut :])
        if tokens[-len(own) :] != own:
            if not self._cut:
                raise ServerError(
                    "unsupported", "This model's media and decisions do not go together.", "model"
                )
            self._cut = 0
            return self.before(tokens, question)
        return tokens[: -len(own)]

    def branch(self, question: str, labels: Sequence[str], ending: int | None) -> Branch:
        """The question with all that follows the tokens of `before`, and its labels. Where one begins with another,
        each of them ends with the token `ending`, so that it is the whole answer.

        Raises `ServerError` for labels that have the same tokens, or none.
        """
        text = self.whole(question)[self._cut :]
        tokens, start = self._literals.encode(text), self._literals.last_marker(text)
        open_turn = self._encode(text[start:])
        if tokens[-len(open_turn) :] != open_turn:
            start, open_turn = 0, tokens
        answers = [
            self._encode(text[start:] + self._literals.shield(label, trusted=True)) for label in labels
        ]
        common = min(shared_length(open_turn, each) for each in answers)
        found = [tuple(each[common:]) for each in answers]
        ordered = sorted(found)
        pairs = list(pairwise(ordered))
        if not all(found) or any(one == other for one, other in pairs):
            raise ServerError(
                "invalid_request", "Two labels of a question are the same to this model.", "questions"
            )
        if ending is not None and any(other[: len(one)] == one for one, other in pairs):
            found = [(*each, ending) for each in found]
        return Branch(tuple(tokens[: len(tokens) - len(open_turn) + common]), tuple(found))

    def _encode(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._literals.encode(text)
        return self._known[text]
