"""Bundled questions, each with its answer and three wrong ones: which one does the model find the most probable?"""

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from msgspec import Struct

from pippin.core.verification import Finding
from pippin.engines.language.job import Branch
from pippin.engines.language.prefix_cache.cache import shared_length
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify.asking import Progress, Served, ignored
from pippin.engines.verify.findings import data, finding

CHOICES: Final = 4
AT_ONCE: Final = 50
MANY_LOST: Final = 0.03
"""The share of answers whose loss is more than chance: of 300 questions, 9."""


class Question(Struct, frozen=True):
    kind: str
    asked: str
    choices: tuple[str, ...]  # the first is right


class Answers(Struct, frozen=True):
    """Which questions the model answered rightly, and the log probability a byte of each right answer."""

    right: tuple[bool, ...]
    scores: tuple[float, ...]

    @property
    def figures(self) -> dict[str, Any]:
        kinds = Counter(question.kind for question in questions())
        found = Counter(
            question.kind for question, right in zip(questions(), self.right, strict=True) if right
        )
        return {
            "questions": len(self.right),
            "right (by guessing 0.25)": sum(self.right) / len(self.right),
            "log probability of a byte of the right answers": sum(self.scores) / len(self.scores),
            **{kind: f"{found[kind]} of {count}" for kind, count in sorted(kinds.items())},
        }


@cache
def questions() -> tuple[Question, ...]:
    """The bundled questions."""
    rows = map(json.loads, data("questions.jsonl").splitlines())
    return tuple(Question(kind, asked, tuple(choices)) for kind, asked, *choices in rows)


def measure(served: Served, progress: Progress = ignored) -> Answers:
    """Ask all questions, `AT_ONCE` of which are the branches of what they begin with."""
    tokenizer, found = served.preparer.tokenizer, list[tuple[float, ...]]()
    for start in range(0, len(questions()), AT_ONCE):
        asked = [_branch(tokenizer, each) for each in questions()[start : start + AT_ONCE]]
        same = min(shared_length(asked[0].tokens, each.tokens[:-1]) for each in asked)
        branches = tuple(Branch(each.tokens[same:], each.labels) for each in asked)
        found += served.branch_scores(asked[0].tokens[:same], branches)
        progress(len(found), len(questions()))
    each_byte = [
        [score / (len(choice.encode()) + 1) for score, choice in zip(row, question.choices, strict=True)]
        for row, question in zip(found, questions(), strict=True)
    ]
    return Answers(tuple(row[0] == max(row) for row in each_byte), tuple(row[0] for row in each_byte))


def check(answers: Answers, other: Answers | None) -> Iterator[Finding]:
    """Judge the answers by chance, and by those of the other model."""
    share = sum(answers.right) / len(answers.right)
    if share < 1.3 / CHOICES:
        yield finding("questions-chance", share=share)
    if other is not None:
        pairs = list(zip(answers.right, other.right, strict=True))
        lost, won = pairs.count((False, True)), pairs.count((True, False))
        yield finding(
            "questions-lost", "warning" if lost - won > MANY_LOST * len(pairs) else None, lost=lost, won=won
        )


def _branch(tokenizer: Tokenizer, question: Question) -> Branch:
    """The tokens of a question as far as no choice changes them, and what follows with each choice."""
    opening = f"Question: {question.asked}\nAnswer:"
    head = tokenizer.encode(opening, add_special_tokens=True)
    whole = [tokenizer.encode(f"{opening} {choice}", add_special_tokens=True) for choice in question.choices]
    same = min(min(shared_length(head, each), len(each) - 1) for each in whole)
    return Branch(tuple(head[:same]), tuple(tuple(each[same:]) for each in whole))
