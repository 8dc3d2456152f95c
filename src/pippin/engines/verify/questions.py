"""Bundled questions, each with its answer and three wrong ones: which one does the model find the most probable?"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pippin.core.completion import Completion
from pippin.core.requests import GenerationRequest
from pippin.core.verification import Finding
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify.asking import Progress, Served, ignored
from pippin.engines.verify.findings import data, finding

CHOICES: Final = 4
MANY_LOST: Final = 0.03
"""The share of answers whose loss is more than chance: of 300 questions, 9."""


@dataclass(frozen=True)
class Question:
    kind: str
    asked: str
    choices: tuple[str, ...]  # the first is right


@dataclass(frozen=True)
class Answers:
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
            "right": sum(self.right) / len(self.right),
            "log probability of a byte of the right answers": sum(self.scores) / len(self.scores),
            **{kind: f"{found[kind]} of {count}" for kind, count in sorted(kinds.items())},
        }


@cache
def questions() -> tuple[Question, ...]:
    """The bundled questions."""
    rows = map(json.loads, data("questions.jsonl").splitlines())
    return tuple(Question(kind, asked, tuple(choices)) for kind, asked, *choices in rows)


def measure(served: Served, progress: Progress = ignored) -> Answers:
    """Ask all questions."""
    pairs = [(question, choice) for question in questions() for choice in question.choices]
    rows = [_tokens(served.preparer.tokenizer, question, choice) for question, choice in pairs]
    asked = [
        GenerationRequest(model="verify", prompt=tuple(ids), echo=True, prompt_logprobs=0, max_tokens=0)
        for ids, _ in rows
    ]
    answers = served.ask_all(asked, lambda done, total: progress(done // CHOICES, total // CHOICES))
    found = [
        _score(answer, length) / (len(choice.encode()) + 1)
        for answer, (_, length), (_, choice) in zip(answers, rows, pairs, strict=True)
    ]
    each = [found[start : start + CHOICES] for start in range(0, len(found), CHOICES)]
    return Answers(tuple(row[0] == max(row) for row in each), tuple(row[0] for row in each))


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


def _tokens(tokenizer: Tokenizer, question: Question, choice: str) -> tuple[list[int], int]:
    """The tokens of a question and a choice, and how many of them are the choice's."""
    opening = f"Question: {question.asked}\nAnswer:"
    head = tokenizer.encode(opening, add_special_tokens=True)
    whole = tokenizer.encode(f"{opening} {choice}", add_special_tokens=True)
    pairs = enumerate(zip(head, whole, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(len(head), len(whole)))
    return whole, len(whole) - same


def _score(answer: Completion | None, length: int) -> float:
    """The log probability of the last tokens of a prompt; 0 for a model that tells none."""
    tokens = () if answer is None or answer.echo is None else answer.echo.tokens
    return sum(token.logprob or 0.0 for token in tokens[-length:])
