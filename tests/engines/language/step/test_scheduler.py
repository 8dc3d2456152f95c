"""Who runs when: decisions without arrays."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache.capacity import CAPACITY_STEP, GROWTH_CHARGED, length_class, rounded
from pippin.engines.language.step.scheduler import Limits, Scheduler, Ticket


def scheduler(**changes: object) -> Scheduler:
    values = {
        "max_rows": 4,
        "queue_size": 100,
        "prefill_chunk": 512,
        "target_gap": 0.2,
        "row_bytes": lambda tokens: tokens * 10,
        "prompt_bytes": lambda tokens: 0,
        "memory": 1_000_000,
        **changes,
    }
    return Scheduler(Limits(**values))  # type: ignore[arg-type]


def ticket(name: str, arrival: int, length: int = 10, **changes: object) -> Ticket:
    values = {"priority": 0, "growth": 10, **changes}
    return Ticket(id=name, arrival=arrival, length=length, **values)  # type: ignore[arg-type]


def test_rows_are_admitted_up_to_the_limit_in_order_of_priority_then_arrival() -> None:
    queue = scheduler()
    for place in range(6):
        queue.add(ticket(f"r{place}", place, priority=int(place == 5)))
    assert [each.id for each in queue.admit()] == ["r5", "r0", "r1", "r2"]
    assert queue.admit() == []


def test_choices_count_as_rows() -> None:
    queue = scheduler()
    queue.add(ticket("many", 0, rows=4))
    queue.add(ticket("one", 1))
    assert [each.id for each in queue.admit()] == ["many"]
    with pytest.raises(ServerError, match="max_num_seqs"):
        queue.add(ticket("more", 2, rows=5))


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    queue = scheduler(memory=10_000)
    with pytest.raises(ServerError, match="5000 prompt tokens") as caught:
        queue.add(ticket("huge", 0, length=5000))
    assert caught.value.report.kind == "context_length_exceeded"


def test_a_prompt_in_the_slot_of_its_row_is_charged_for_that_and_for_what_it_has_beside_it() -> None:
    queue = scheduler(
        prompts_in_slots=True,
        row_bytes=lambda places: places,
        prompt_bytes=lambda places: 10 * places,
        aside_bytes=lambda places: 7,
    )
    one, two = ticket("one", 0, length=100, growth=600), ticket("two", 1, length=100, growth=600, rows=2)
    row = rounded(100 + GROWTH_CHARGED)
    assert queue._charge([one]) == row + 7
    assert queue._charge([two]) == 10 * (100 + CAPACITY_STEP), "which are copied out of a cache beside them"
    queue.add(one)
    queue.admit()
    assert queue.for_rows() == queue.limits.memory - 7
    queue.add(two)
    queue.admit()
    assert queue.for_rows() == queue.limits.memory - 7 - 10 * (100 + CAPACITY_STEP)
    assert queue.coming(one) == 2
    assert queue.coming(two) == 1
    one.reserved = True
    assert queue.coming(two) == 0


def test_a_prompt_that_is_alone_ends_where_the_memory_shrinks_below_its_row_and_not_before() -> None:
    queue = scheduler(prompts_in_slots=True, row_bytes=lambda places: places, aside_bytes=lambda places: 7)
    queue.add(ticket("alone", 0, length=100, growth=600))
    [alone] = queue.admit()
    queue.limits.memory = 256 + 7
    assert queue.hopeless() == []
    assert queue.victim() is None
    queue.limits.memory -= 1
    assert queue.hopeless() == [alone]


def test_what_does_not_fit_now_waits_until_it_does() -> None:
    queue = scheduler(memory=256 * 10 * 2)
    for place in range(3):
        queue.add(ticket(f"r{place}", place))
    first, second = queue.admit()
    assert queue.admit() == []
    queue.drop([first])
    assert [each.id for each in queue.admit()] == ["r2"]
    assert second.phase == "prefill"


def test_a_full_queue_says_when_to_come_back() -> None:
    queue = scheduler(queue_size=2)
    queue.add(ticket("a", 0))
    queue.add(ticket("b", 1))
    with pytest.raises(ServerError, match="as many as the queue holds") as caught:
        queue.add(ticket("c", 2))
    assert caught.value.report.kind == "overloaded"
    assert (caught.value.report.retry_after or 0) > 0


def test_a_chunk_is_whole_when_nobody_decodes_and_fits_the_gap_when_somebody_does() -> None:
    queue = scheduler()
    assert queue.chunk() == 512
    queue.add(ticket("a", 0))
    [running] = queue.split(queue.admit()[0])
    queue.observe(0.05, 0, 1)
    for tokens in (100, 300):
        queue.observe(0.05 + 0.03 + tokens / 1000, tokens, 1)
    assert queue.chunk() == pytest.approx(120, abs=1)  # 0.15 s are left of the gap
    queue.limits.target_gap = 0.14
    assert queue.chunk() == pytest.approx(120, abs=1)  # less than two steps are left: the time of three
    for place in range(9):
        queue.add(ticket(f"waits{place}", place + 1, length=500))
        queue.limits.max_rows = 10
        queue.admit()
        steps = min(max(3, 5 * (place + 1)), 8)
        assert queue.chunk() == pytest.approx(50 * steps - 30, abs=1), "more where many wait"
    queue.drop([each for each in queue.tickets if each is not running])
    queue.drop([running])
    assert queue.chunk() == 512


def test_a_short_prompt_goes_before_the_rest_of_a_long_one() -> None:
    queue = scheduler(max_rows=8)
    long, short = ticket("long", 0, length=8000), ticket("short", 1, length=20)
    queue.add(long)
    queue.admit()
    assert queue.next_prompt() is long
    queue.computed(long, 512)
    queue.add(short)
    queue.admit()
    assert queue.next_prompt() is short


def test_a_long_prompt_does_not_starve_behind_short_ones() -> None:
    queue = scheduler(max_rows=10**6)
    long = ticket("long", 0, length=5000)
    queue.add(long)
    queue.admit()
    for place in range(1, 2000):
        queue.add(ticket(f"s{place}", place, length=100))
        queue.admit()
        chosen = queue.next_prompt()
        assert chosen is not None
        if chosen is long:
            break
        queue.computed(chosen, 100)
        queue.split(chosen)
    assert place <= 51


def test_a_prompt_of_100_000_tokens_holds_up_nobody_and_ends() -> None:
    """Neither the row that runs, nor short prompts that come all the while, not even when its own turn has come."""
    queue = scheduler(max_rows=10**6, memory=10**12)
    queue.add(ticket("running", 0, growth=10**6))
    queue.split(*queue.admit())
    long = ticket("long", 1, length=100_000)
    queue.add(long)
    arrived: dict[Ticket, int] = {}
    waits: list[int] = []
    gaps: list[float] = []
    while long.remaining:
        step = len(gaps)
        if step % 4 == 0:
            short = ticket(f"s{step}", 2 + step, length=50)
            queue.add(short)
            arrived[short] = step
        queue.admit()
        chosen = queue.next_prompt()
        assert chosen is not None
        tokens = min(queue.chunk(), chosen.remaining)
        gaps.append(0.05 + 0.03 + tokens * (1 + chosen.computed / 100_000) / 1000)
        queue.computed(chosen, tokens)
        queue.observe(gaps[-1], tokens, 1)
        if chosen is not long and not chosen.remaining:
            waits.append(step - arrived[chosen])
            queue.drop([chosen])
    assert max(waits) <= 3
    assert max(gaps[50:]) < 0.25, "the target, and what the guess is off by"
    assert len(gaps) < 100_000 / 50 * 4 / 3, "it has what the short ones leave"


def test_the_lowest_then_the_youngest_is_preempted() -> None:
    queue = scheduler(max_rows=8, memory=256 * 10 * 3)
    for place, priority in enumerate([0, 1, 0]):
        queue.add(ticket(f"r{place}", place, priority=priority, growth=5))
    rows = [queue.split(each)[0] for each in queue.admit()]
    assert queue.victim() is None
    for row in rows:
        row.length = 300
    victim = queue.victim()
    assert victim is not None
    assert victim.id == "r2"
    queue.drop([victim])
    queue.requeue(victim)
    assert queue.victim().id == "r0"  # type: ignore[union-attr]


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=20)
)
def test_everything_is_served_in_the_end(plan: list[tuple[int, int, int]]) -> None:
    queue = scheduler(memory=200_000)
    for place, (length, priority, rows) in enumerate(plan):
        try:
            queue.add(ticket(f"r{place}", place, length=length, priority=priority, rows=rows))
        except ServerError:
            continue
    for _ in range(10_000):
        queue.admit()
        chosen = queue.next_prompt()
        if chosen is not None:
            count = min(queue.chunk(), chosen.remaining)
            queue.computed(chosen, count)
            if not chosen.remaining:
                queue.split(chosen)
        elif queue.phase("running"):
            queue.drop(queue.phase("running")[:1])
        if not queue.tickets:
            return
        assert sum(each.rows for each in queue.tickets if each.phase != "waiting") <= 4
    raise AssertionError(f"{len(queue.tickets)} tickets are left")


def test_a_lone_row_gives_way_while_another_prompt_is_computed() -> None:
    queue = scheduler(memory=256 * 10 * 10)
    queue.add(ticket("grown", 0, growth=2000))
    [grown] = queue.split(*queue.admit())
    queue.add(ticket("long", 1, length=1200))
    assert [each.id for each in queue.admit()] == ["long"]
    grown.length = 1400
    assert queue.victim() is grown


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 1500), st.integers(1, 700), st.integers(0, 2), st.integers(1, 3)),
        min_size=1,
        max_size=8,
    ),
    st.integers(30_000, 120_000),
)
def test_no_mix_of_requests_exceeds_the_memory(plan: list[tuple[int, int, int, int]], memory: int) -> None:
    queue = scheduler(memory=memory, row_bytes=lambda tokens: tokens * 10)
    for place, (length, growth, priority, rows) in enumerate(plan):
        with contextlib.suppress(ServerError):
            queue.add(ticket(f"r{place}", place, length=length, growth=growth, priority=priority, rows=rows))
    ends = {row.id: row.length + row.growth for row in queue.tickets}
    for _ in range(30_000):
        if not queue.tickets:
            return
        queue.admit()
        if (chosen := queue.next_prompt()) is not None:
            queue.computed(chosen, min(queue.chunk(), chosen.remaining))
            if not chosen.remaining:
                queue.split(chosen)
        for row in queue.phase("running"):
            row.length, row.growth = row.length + 1, row.growth - 1
        queue.drop([row for row in queue.phase("running") if row.length >= ends[row.id]])
        while (victim := queue.victim()) is not None:
            queue.drop([victim])
            queue.requeue(victim)
        if (lone := queue.overgrown()) is not None:
            queue.drop([lone])
        held = [each for each in queue.tickets if each.phase != "waiting"]
        assert bytes_of(held) <= memory
    raise AssertionError(f"{len(queue.tickets)} tickets are left")


def bytes_of(tickets: list[Ticket]) -> int:
    """What rows take, padded to the longest of their class, reckoned by hand."""
    size = 0
    for kind in {length_class(each.length) for each in tickets}:
        group = [each for each in tickets if length_class(each.length) == kind]
        longest = max(each.length for each in group)
        size += sum(each.rows for each in group) * -(-longest // CAPACITY_STEP) * CAPACITY_STEP * 10
    return size
