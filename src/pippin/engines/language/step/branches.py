"""Scores labels: the branches of a prompt, each computed once from where the prompt ends.

A branch is a question and the answers to it, its labels. A label's tokens are scored by the logits before each of them,
so a path of tokens needs computing only as far as other tokens follow it: labels of one token need the question alone.
Branches are computed in rows, several in a pass. A row begins as a copy of the prompt's cache and is taken back to the
prompt's end for each branch, so there are few copies for many branches.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pippin.engines.language.job import Branch, LanguageJob
from pippin.engines.language.kv_cache.layout import CacheLayout
from pippin.engines.language.kv_cache.slots import PromptCache

MOST_ROWS = 8
BRANCHES_OF_A_ROW = 4
"""A copy of the prompt's cache pays for so many branches."""
TOKENS_OF_ROWS = 1 << 15
"""Tokens of prompts in all rows together, unless there is one row only."""
COPIED_TOKENS = 16  # are copied in the time of computing one, at least
SCORED_AT_ONCE = 8  # places of a row whose logits over the vocabulary are held at once


class Score(NamedTuple):
    """A token of a label, and the place in its piece before it."""

    place: int
    branch: int
    label: int
    token: int


@dataclass(frozen=True)
class Piece:
    """Tokens that are computed after the prompt, or after so many tokens of the same branch that the row has."""

    after: int
    tokens: tuple[int, ...]
    scores: tuple[Score, ...]  # in the order of their places


def pieces_of(number: int, branch: Branch, *, rewinds: bool) -> list[Piece]:
    """What is to be computed of a branch. `rewinds`: a row can return to the end of the question."""
    contexts = sorted({label[:-1] for label in branch.labels})
    following: list[tuple[int, ...] | None] = [*contexts[1:], None]
    # A context that another begins with is computed along with that.
    paths = [
        each
        for each, other in zip(contexts, following, strict=True)
        if other is None or other[: len(each)] != each
    ]
    owners: dict[tuple[int, ...], int] = {}
    for index, path in enumerate(paths):
        for end in range(len(path) + 1):
            owners.setdefault(path[:end], index)
    asked = len(branch.tokens)
    skipped = [asked if rewinds and index else 0 for index in range(len(paths))]
    found: list[list[Score]] = [[] for _ in paths]
    for name, label in enumerate(branch.labels):
        for end, token in enumerate(label):
            owner = owners[label[:end]]
            found[owner].append(Score(asked + end - 1 - skipped[owner], number, name, token))
    return [
        Piece(skip, (branch.tokens + path)[skip:], tuple(sorted(scores)))
        for skip, path, scores in zip(skipped, paths, found, strict=True)
    ]


def rows_of(job: LanguageJob, layout: CacheLayout) -> int:
    """In how many rows the branches are computed at best."""
    if not layout.joins:
        return 1
    return max(1, min(MOST_ROWS, len(job.branches) // BRANCHES_OF_A_ROW, TOKENS_OF_ROWS // len(job.prompt)))


@dataclass(eq=False)
class Row:
    cache: PromptCache | None = None  # None until its first piece
    queue: deque[Piece] = field(default_factory=deque)
    done: int = 0  # tokens of the first piece that are computed
    left: int = 0  # tokens that are not


class Chunk(NamedTuple):
    """The next tokens of a row's piece, and what their logits score."""

    cache: PromptCache
    tokens: tuple[int, ...]
    scores: list[Score]  # with places in the chunk


class Scoring:
    """The branches of one prompt under way."""

    def __init__(self, job: LanguageJob, cache: PromptCache, layout: CacheLayout, rows: int) -> None:
        """`cache` holds the whole prompt, and becomes the first row."""
        self._prompt, self._layout, self._mark = len(job.prompt), layout, layout.mark(cache)
        self._capacity = self._prompt + max(branch.longest for branch in job.branches)
        self._rows = [Row(cache), *(Row() for _ in range(rows - 1))]
        for number, branch in enumerate(job.branches):
            row = min(self._rows, key=lambda each: each.left)
            pieces = pieces_of(number, branch, rewinds=layout.joins)
            row.queue += pieces
            row.left += sum(len(piece.tokens) for piece in pieces)
        self._sums = [[0.0] * len(branch.labels) for branch in job.branches]

    @property
    def left(self) -> int:
        """Tokens still to be computed."""
        return sum(row.left for row in self._rows)

    @property
    def logprobs(self) -> tuple[tuple[float, ...], ...]:
        """The sum over each label's tokens, once nothing is left."""
        return tuple(map(tuple, self._sums))

    def take(self, most: int) -> list[Chunk]:
        """Chunks of different rows to compute in one pass, of `most` tokens in all or little more."""
        taken: list[Chunk] = []
        for row in sorted(self._rows, key=lambda each: -each.left):
            if not row.queue or (taken and most < len(row.queue[0].tokens) - row.done):
                break
            copied = 0
            if row.cache is None:
                first = self._rows[0].cache or []
                row.cache = self._layout.copy(first, self._prompt, self._capacity)
                copied = self._prompt // COPIED_TOKENS
            taken.append(self._chunk(row, row.cache, most))
            most -= len(taken[-1].tokens) + copied
        return taken

    def _chunk(self, row: Row, cache: PromptCache, most: int) -> Chunk:
        piece, done = row.queue[0], row.done
        if not done:
            self._layout.rewind(cache, self._mark, self._prompt + piece.after)
        end = min(done + most, len(piece.tokens))
        places = sorted({score.place for score in piece.scores if score.place >= done})
        if len(places) > SCORED_AT_ONCE:
            end = min(end, places[SCORED_AT_ONCE])
        row.done, row.left = end, row.left - (end - done)
        if end == len(piece.tokens):
            row.queue.popleft()
            row.done = 0
        scores = [
            score._replace(place=score.place - done) for score in piece.scores if done <= score.place < end
        ]
        return Chunk(cache, piece.tokens[done:end], scores)

    def add(self, scores: Sequence[Score], logprobs: Sequence[float]) -> None:
        for score, logprob in zip(scores, logprobs, strict=True):
            self._sums[score.branch][score.label] += logprob
