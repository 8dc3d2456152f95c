"""Scores labels: the branches of a prompt, each computed once from where the prompt ends.

A branch is a question and the answers to it, its labels. A label's tokens are scored by the logits before each of them,
so a path of tokens needs computing only as far as other tokens follow it: labels of one token need the question alone.
Branches are computed in rows, several in a pass. All rows read the prompt where it lies. Each is taken back for its
next branch to what this shares with the last one, so alike ones share a row.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pippin.engines.language.job import Branch, LanguageJob
from pippin.engines.language.kv_cache.kinds.base import PromptCache
from pippin.engines.language.kv_cache.layout import CacheLayout
from pippin.engines.language.prefix_cache.cache import shared_length

MOST_ROWS = 8
BRANCHES_OF_A_ROW = 4
"""Alike questions that follow each other in a row are computed once as far as they are the same."""
TOKENS_OF_ROWS = 1 << 15
"""Tokens of prompts in all rows together, unless there is one row only."""
MOST_STRETCH = 2  # times the tokens of a pass, for one that takes a piece of every row
SCORED_AT_ONCE = 8  # places of a row whose logits over the vocabulary are held at once


class Score(NamedTuple):
    """A token of a label, and the place in its piece before it."""

    place: int
    branch: int
    label: int
    token: int


class Piece(Struct, frozen=True):
    """Tokens to compute after the prompt: a question, and those of its labels that others follow."""

    question: tuple[int, ...]
    path: tuple[int, ...]
    scores: tuple[Score, ...]  # in the order of their places
    known: int  # tokens that the row has of the piece before

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.question + self.path


def pieces_of(branches: Sequence[Branch], *, cuts: bool) -> list[Piece]:
    """What is to be computed of all branches, in the order of the tokens. `cuts`: a row can return to any token, so
    that what two pieces begin with is computed once."""
    questions: dict[tuple[int, ...], dict[tuple[int, ...], list[Score]]] = {}
    for number, branch in enumerate(branches):
        paths = questions.setdefault(branch.tokens, {})
        for name, label in enumerate(branch.labels):
            for end, token in enumerate(label):
                score = Score(len(branch.tokens) + end - 1, number, name, token)
                paths.setdefault(label[:end], []).append(score)
    pieces: list[Piece] = []
    for question in sorted(questions):
        known = shared_length(question, pieces[-1].tokens) if pieces else 0
        paths, found = questions[question], list[Score]()
        ordered = sorted(paths)
        for path, following in zip_longest(ordered, ordered[1:]):
            found += paths[path]
            # A path that another begins with is computed along with that.
            if following is None or following[: len(path)] != path:
                # What is scored must be computed.
                pieces.append(Piece(question, path, tuple(found), min(known, found[0].place) if cuts else 0))
                known, found = len(question) + shared_length(path, following or ()), []
    return pieces


def dealt(pieces: Sequence[Piece], rows: int) -> list[deque[Piece]]:
    """The pieces in at most so many rows, about as many in each, so that there are few passes."""
    size = math.ceil(len(pieces) / rows)
    cut = (pieces[start : start + size] for start in range(0, len(pieces), size))
    return [deque([replace(first, known=0), *others]) for first, *others in cut]


def rows_of(job: LanguageJob) -> int:
    """The rows in which the branches are computed at best, by a model that computes several prompts in a pass."""
    return max(1, min(MOST_ROWS, len(job.branches) // BRANCHES_OF_A_ROW, TOKENS_OF_ROWS // len(job.prompt)))


@dataclass(eq=False)
class Row:
    queue: deque[Piece]
    left: int  # tokens to compute
    cache: PromptCache
    done: int = 0  # tokens of the first piece that it has

    @property
    def missing(self) -> int:
        """How many tokens of the first piece it lacks."""
        return len(self.queue[0].tokens) - self.done


class Chunk(NamedTuple):
    """The next tokens of a row's piece, and what their logits score."""

    cache: PromptCache
    tokens: tuple[int, ...]
    scores: list[Score]  # with places in the chunk


class Scoring:
    """The branches of one prompt under way."""

    def __init__(self, job: LanguageJob, cache: PromptCache, layout: CacheLayout, rows: int) -> None:
        """`cache` holds the whole prompt. A single row is computed behind it, in the same memory."""
        self._prompt, self._layout, self._mark = len(job.prompt), layout, layout.mark(cache)
        queues = dealt(pieces_of(job.branches, cuts=layout.joins), rows)
        longest = max(branch.longest for branch in job.branches)
        caches = [layout.fork(cache, self._prompt, longest) for _ in queues] if rows > 1 else [cache]
        self._rows = [
            Row(queue, sum(len(each.tokens) - each.known for each in queue), own)
            for queue, own in zip(queues, caches, strict=True)
        ]
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
        """Chunks of different rows to compute in one pass, of `most` tokens in all or little more.

        A pass costs much beside its tokens, and less if its rows are those of the pass before. So a pass takes the
        next piece of every row, unless most of these would be too many.
        """
        rows = sorted((row for row in self._rows if row.queue), key=lambda row: -row.left)
        if sum(row.missing for row in rows) <= MOST_STRETCH * most:
            return [self._chunk(row, row.missing) for row in rows]
        taken: list[Chunk] = []
        for row in rows:
            if taken and most < row.missing:
                break
            taken.append(self._chunk(row, most))
            most -= len(taken[-1].tokens)
        return taken

    def _chunk(self, row: Row, most: int) -> Chunk:
        piece, done = row.queue[0], row.done
        tokens = piece.tokens
        if done == piece.known:
            self._layout.rewind(row.cache, self._mark, self._prompt + done)
        end = min(done + most, len(tokens))
        places = sorted({score.place for score in piece.scores if score.place >= done})
        if len(places) > SCORED_AT_ONCE:
            end = min(end, places[SCORED_AT_ONCE])
        row.done, row.left = end, row.left - (end - done)
        if end == len(tokens):
            row.queue.popleft()
            row.done = row.queue[0].known if row.queue else 0
        scores = [
            score._replace(place=score.place - done) for score in piece.scores if done <= score.place < end
        ]
        return Chunk(row.cache, tokens[done:end], scores)

    def add(self, scores: Sequence[Score], logprobs: Sequence[float]) -> None:
        for score, logprob in zip(scores, logprobs, strict=True):
            self._sums[score.branch][score.label] += logprob
