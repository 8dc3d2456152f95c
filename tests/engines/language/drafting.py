"""What the tests of all draft heads share: prompts whose end was there before, and the model as the judge."""

from collections.abc import Iterator
from typing import Any

from pippin.engines.language.kv_cache.layout import arrays_of
from pippin.engines.language.step.speculation.draft_model import DraftModel
from tests.engines.language.bench import Bench, run_all

PHRASE = tuple(place * 17 % 240 for place in range(12))
Prompts = dict[str, tuple[tuple[int, ...], int]]


def begin(inner: Any) -> None:
    """Have a head of mlx-vlm's read from the first token on."""
    inner._cache, inner._next_position = inner.make_cache(), 0


def prompts_of(tokens: int, more: int = 2, count: int = 4) -> Prompts:
    """`r0`, `r1` and so on, each longer than the one before: what is asked, and how many tokens the answer has. The
    longer ones go past the sliding windows of the tiny models."""
    return {f"r{place}": ((*PHRASE * (1 + place), place, 3), tokens + more * place) for place in range(count)}


def held(follower: Any) -> list[Any]:
    """The prompts and sequences of which something that follows the model's passes holds states."""
    return [*follower.prompts, *follower.followed]


def bytes_of(drafter: DraftModel) -> int:
    """Bytes of the keys and values that a draft model holds, of sequences in the batch and of those it still reads."""
    alone = (array.nbytes for each in drafter.reading.values() for array in arrays_of(each.cache))
    return drafter.slots.groups.bytes + sum(alone)


def judge_own_answers(bench: Bench, prompts: Prompts) -> None:
    """All answers are whole and the model's own; the second time, most of the prompts are known."""
    for _ in range(2):
        answers, _ = run_all(bench, prompts)
        for name, (prompt, count) in prompts.items():
            assert len(answers[name, 0]) == count
            bench.judge(prompt, answers[name, 0])
    assert bench.engine.stats().draft_tokens > 0


def drafts_of(bench: Bench, heads: Any, prompts: Prompts, enough: int) -> Iterator[tuple[Any, list[int]]]:
    """Sequences with three tokens that are drafted for them, after each step that computes three of them or more, until
    those are enough."""
    for name, (prompt, count) in prompts.items():
        bench.engine.submit(bench.job(name, prompt, count))
    given = 0
    while bench.engine.busy and given < enough:
        bench.engine.step()
        running = [each.sequence for each in bench.engine.batch.running if heads.is_ready(each.sequence)]
        if len(running) < 3:
            continue
        proposed = heads.propose([(sequence, 3) for sequence in running])
        for sequence, (found, *_) in zip(running, proposed, strict=True):
            yield sequence, found
            given += 1
    assert given >= enough
