"""Scores labels: the branches of a prompt, each computed once from where the prompt ends.

A branch is a question and the answers to it, its labels. A label's tokens are scored by the logits before each of them,
so a path of tokens needs computing only as far as other tokens follow it: labels of one token need the question alone.
Branches are computed in rows, several in a pass. A row begins as a copy of the prompt's cache and is taken back for
each branch to what this shares with the last one, so there are few copies for many branches; alike ones share a row.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pippin.engines.language.job import Branch, LanguageJob
from pippin.engines.language.kv_cache.layout import CacheLayout
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.prefix_cache.tree import shared_length

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
    """Tokens of a branch, with their places after the prompt."""

    tokens: tuple[int, ...]
    scores: tuple[Score, ...]  # in the order of their places
    known: int = 0  # tokens that the row has of the piece before


def pieces_of(number: int, branch: Branch) -> list[Piece]:
    """What is to be computed of a branch."""
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
    found: list[list[Score]] = [[] for _ in paths]
    for name, label in enumerate(branch.labels):
        for end, token in enumerate(label):
            place = len(branch.tokens) + end - 1
            found[owners[label[:end]]].append(Score(place, number, name, token))
    return [
        Piece(branch.tokens + path, tuple(sorted(scores))) for path, scores in zip(paths, found, strict=True)
    ]


def distributed(pieces: Sequence[Piece], rows: int, *, cuts: bool) -> list[list[Piece]]:
    """The pieces in the order of their tokens, in rows of about as many tokens to compute. `cuts`: a row can return to
    any token, so that what two pieces begin with is computed once."""
    ordered = sorted(pieces, key=lambda each: each.tokens)
    if cuts:
        pairs = zip(ordered, [Piece((), ()), *ordered], strict=False)
        # What is scored must be computed.
        known = [
            min(shared_length(each.tokens, before.tokens), each.scores[0].place) for each, before in pairs
        ]
        ordered = [replace(each, known=count) for each, count in zip(ordered, known, strict=True)]
    found: list[list[Piece]] = [[] for _ in range(rows)]
    total = sum(len(each.tokens) - each.known for each in ordered)
    done = 0
    for each in ordered:
        row = found[min(done * rows // total, rows - 1)]
        done += len(each.tokens) - each.known
        row.append(each if row else replace(each, known=0))
    return found


def rows_of(job: LanguageJob, layout: CacheLayout) -> int:
    """In how many rows the branches are computed at best."""
    if not layout.joins:
        return 1
    return max(1, min(MOST_ROWS, len(job.branches) // BRANCHES_OF_A_ROW, TOKENS_OF_ROWS // len(job.prompt)))


@dataclass(eq=False)
class Row:
    queue: deque[Piece]
    cache: PromptCache | None = None  # None until its first piece
    done: int = 0  # tokens of the first piece that it has
    left: int = field(init=False)  # tokens to compute

    def __post_init__(self) -> None:
        self.left = sum(len(piece.tokens) - piece.known for piece in self.queue)


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
        pieces = [piece for number, each in enumerate(job.branches) for piece in pieces_of(number, each)]
        queues = filter(None, distributed(pieces, rows, cuts=layout.joins))
        self._rows = [Row(deque(queue)) for queue in queues]
        self._rows[0].cache = cache
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
        if done == piece.known:
            self._layout.rewind(cache, self._mark, self._prompt + done)
        end = min(done + most, len(piece.tokens))
        places = sorted({score.place for score in piece.scores if score.place >= done})
        if len(places) > SCORED_AT_ONCE:
            end = min(end, places[SCORED_AT_ONCE])
        row.done, row.left = end, row.left - (end - done)
        if end == len(piece.tokens):
            row.queue.popleft()
            row.done = row.queue[0].known if row.queue else 0
        scores = [
            score._replace(place=score.place - done) for score in piece.scores if done <= score.place < end
        ]
        return Chunk(cache, piece.tokens[done:end], scores)

    def add(self, scores: Sequence[Score], logprobs: Sequence[float]) -> None:
        for score, logprob in zip(scores, logprobs, strict=True):
            self._sums[score.branch][score.label] += logprob
