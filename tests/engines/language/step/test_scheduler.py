"""Who runs when: decisions without arrays."""

import contextlib
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache.kinds.base import CAPACITY_STEP, GROWTH_CHARGED, length_class, rounded
from pippin.engines.language.step.scheduler import Scheduler, StepLimits
from pippin.engines.language.step.sequences import Prefilling, Running, Waiting


def scheduler(**changes: object) -> Scheduler:
    values = {
        "max_sequences": 4,
        "queue_size": 100,
        "prefill_chunk": 512,
        "target_gap": 0.2,
        "sequence_bytes": lambda tokens: tokens * 10,
        "prompt_bytes": lambda tokens: 0,
        "memory": 1_000_000,
        **changes,
    }
    return Scheduler(StepLimits(**values))  # type: ignore[arg-type]


def prompt(name: str, arrival: int, length: int = 10, *, count: int = 1, **changes: object) -> Waiting:
    """Its sequences are nothing but names: the scheduler does not look into them."""
    values = {"priority": 0, "growth": 10, **changes}
    return Waiting(sequences=(name,) * count, tokens=(0,) * length, arrival=arrival, **values)  # type: ignore[arg-type]


def name_of(stage: Prefilling | Running | None) -> str:
    assert stage is not None
    found = stage.sequence if isinstance(stage, Running) else stage.sequences[0]
    return str(found)


def grow(queue: Scheduler, running: Running, length: int) -> None:
    while running.length < length:
        queue.grew(running)


def admitted(queue: Scheduler, waiting: Waiting) -> Prefilling:
    queue.add(waiting)
    [found] = queue.admit()
    return found


def test_prompts_are_admitted_up_to_the_limit_in_order_of_priority_then_arrival() -> None:
    queue = scheduler()
    for place in range(6):
        queue.add(prompt(f"r{place}", place, priority=int(place == 5)))
    assert [name_of(each) for each in queue.admit()] == ["r5", "r0", "r1", "r2"]
    assert queue.admit() == []


def test_choices_count_as_sequences() -> None:
    queue = scheduler()
    queue.add(prompt("many", 0, count=4))
    queue.add(prompt("one", 1))
    assert [name_of(each) for each in queue.admit()] == ["many"]
    with pytest.raises(ServerError, match="max_num_seqs"):
        queue.add(prompt("more", 2, count=5))


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    queue = scheduler(memory=10_000)
    with pytest.raises(ServerError, match="5000 prompt tokens") as caught:
        queue.add(prompt("huge", 0, length=5000))
    assert caught.value.report.kind == "context_length_exceeded"


def test_a_prompt_is_charged_for_its_slot_and_for_the_state_beside_it() -> None:
    queue = scheduler(
        prompts_in_slots=True,
        sequence_bytes=lambda capacity: capacity,
        prompt_bytes=lambda capacity: 10 * capacity,
        aside_bytes=lambda capacity: 7,
    )
    one, two = prompt("one", 0, length=100, growth=600), prompt("two", 1, length=100, growth=600, count=2)
    copied_from = 10 * (100 + CAPACITY_STEP)
    for waiting, need in ((one, rounded(100 + GROWTH_CHARGED) + 7), (two, copied_from)):
        plenty, queue.limits.memory = queue.limits.memory, need - 1
        with pytest.raises(ServerError, match="KV cache"):
            queue.add(waiting)
        queue.limits.memory = need
        queue.add(waiting)
        queue.drop(waiting)
        queue.limits.memory = plenty
    first = admitted(queue, one)
    assert queue.for_running() == queue.limits.memory - 7
    second = admitted(queue, two)
    assert queue.for_running() == queue.limits.memory - 7 - copied_from
    assert queue.slot_request(first).following == 2
    assert queue.slot_request(second).following == 1
    queue.begin(first, 0, in_slot=True)
    assert queue.slot_request(second).following == 0


@given(st.lists(st.tuples(st.integers(1, 20_000), st.integers(0, 600)), max_size=6), st.booleans())
def test_running_sequences_are_charged_alike_alone_and_beside_prompts(
    sequences: list[tuple[int, int]], drafts: bool
) -> None:
    """Each at the longest of its class of lengths."""
    queue = scheduler(sequence_bytes=lambda capacity: 3 * capacity, memory=1 << 40, max_sequences=8, slack=4)
    queue.limits.draft_bytes = (lambda tokens: tokens) if drafts else queue.limits.draft_bytes
    for place, (length, tokens) in enumerate(sequences):
        [running] = queue.start(admitted(queue, prompt(f"r{place}", place, length=length, growth=1000)))
        for _ in range(tokens):
            queue.grew(running)
    assert queue.charged == queue._charge(queue.running, growth=1)


def test_a_lone_prompt_ends_only_when_memory_shrinks_below_its_sequence() -> None:
    queue = scheduler(
        prompts_in_slots=True, sequence_bytes=lambda capacity: capacity, aside_bytes=lambda capacity: 7
    )
    alone = admitted(queue, prompt("alone", 0, length=100, growth=600))
    queue.limits.memory = 256 + 7
    assert queue.hopeless() == []
    assert queue.victim() is None
    queue.limits.memory -= 1
    assert queue.hopeless() == [alone]


def test_what_does_not_fit_now_waits_until_it_does() -> None:
    queue = scheduler(memory=256 * 10 * 2)
    for place in range(3):
        queue.add(prompt(f"r{place}", place))
    first, second = queue.admit()
    assert queue.admit() == []
    queue.drop(first)
    assert [name_of(each) for each in queue.admit()] == ["r2"]
    assert second in queue.prefilling


def test_a_full_queue_says_when_to_come_back() -> None:
    queue = scheduler(queue_size=2)
    queue.add(prompt("a", 0))
    queue.add(prompt("b", 1))
    with pytest.raises(ServerError, match="as many as the queue holds") as caught:
        queue.add(prompt("c", 2))
    assert caught.value.report.kind == "overloaded"
    assert (caught.value.report.retry_after or 0) > 0


def test_a_chunk_is_whole_when_nobody_decodes_and_fits_the_gap_when_somebody_does() -> None:
    queue = scheduler()
    assert queue.chunk() == 512
    [running] = queue.start(admitted(queue, prompt("a", 0)))
    queue.observe(0.05, 0, 1)
    for tokens in (100, 300):
        queue.observe(0.05 + 0.03 + tokens / 1000, tokens, 1)
    assert queue.chunk() == pytest.approx(120, abs=1)  # 0.15 s are left of the gap
    queue.limits.target_gap = 0.11
    assert queue.chunk() == pytest.approx(30, abs=1)  # twice its fixed cost
    queue.limits.target_gap = 0.09
    assert queue.chunk() == pytest.approx(30, abs=1)  # less than a step is left
    for place in range(9):
        queue.add(prompt(f"waits{place}", place + 1, length=500))
        queue.limits.max_sequences = 10
        queue.admit()
        seconds = max(50 * min(max(1, 3 * place), 8), 60)
        assert queue.chunk() == pytest.approx(seconds - 30, abs=1), "more where many wait"
    for each in [*queue.prefilling, running]:
        queue.drop(each)
    assert queue.chunk() == 512


def test_a_part_of_a_pass_leaves_gaps_below_twice_their_length_unless_a_target_says_more() -> None:
    queue = scheduler(target_gap=0.03)
    queue.start(admitted(queue, prompt("a", 0)))
    assert queue.for_prompts(0.05, rests=True) == pytest.approx(0.04)
    assert queue.for_prompts(0.01, rests=True) == pytest.approx(0.02), "up to 30 ms nobody sees"
    assert queue.for_prompts(0.01, rests=False) == pytest.approx(0.02)
    queue.limits.target_gap = 0.2
    assert queue.for_prompts(0.05, rests=True) == pytest.approx(0.15)


def test_a_pass_in_parts_teaches_the_cost_of_prompts_and_not_that_of_streams() -> None:
    queue = scheduler(target_gap=0.03)
    [running] = queue.start(admitted(queue, prompt("a", 0)))
    for _ in range(3):
        queue.observe(0.05, 0, 1)
    long = admitted(queue, prompt("b", 1, length=1000))
    for tokens in (0, 0, 100):
        if tokens:
            queue.computed(long, tokens)
        queue.rested(tokens, 0.2)
        assert queue.observe(0.09, tokens, 1) > 0, "the step is no measure of decoding"
    assert queue.step_cost.decoding(1) == pytest.approx(0.05)
    assert queue.chunk(rests=True) == pytest.approx(100 * 8 * 0.04 / 0.2, rel=0.3)
    queue.drop(running)


def test_a_chunk_behind_a_draw_costs_the_next_step_its_time() -> None:
    in_time, late = scheduler(), scheduler()
    for queue in (in_time, late):
        queue.start(admitted(queue, prompt("a", 0)))
        queue.observe(0.05, 0, 1)
    for tokens in (100, 300):
        in_time.observe(0.08 + tokens / 1000, tokens, 1)
    assert late.observe(0.05, 100, 1, late=True) == 0
    assert late.observe(0.18, 300, 1, late=True) == 100
    assert late.observe(0.38, 0, 1) == 300
    assert late.chunk() == pytest.approx(in_time.chunk(), abs=1)


def test_a_short_prompt_goes_before_the_rest_of_a_long_one() -> None:
    queue = scheduler(max_sequences=8)
    long = admitted(queue, prompt("long", 0, length=8000))
    assert queue.next_prompt() is long
    queue.computed(long, 512)
    short = admitted(queue, prompt("short", 1, length=20))
    assert queue.next_prompt() is short


def test_a_long_prompt_does_not_starve_behind_short_ones() -> None:
    queue = scheduler(max_sequences=10**6)
    long = admitted(queue, prompt("long", 0, length=5000))
    for place in range(1, 2000):
        queue.add(prompt(f"s{place}", place, length=100))
        queue.admit()
        chosen = queue.next_prompt()
        assert chosen is not None
        if chosen is long:
            break
        queue.computed(chosen, 100)
        queue.start(chosen)
    assert place <= 51


def test_a_prompt_of_100_000_tokens_holds_up_nobody_and_ends() -> None:
    """Neither the row that runs, nor short prompts that come all the while, not even when its own turn has come."""
    queue = scheduler(max_sequences=10**6, memory=10**12)
    queue.start(admitted(queue, prompt("running", 0, growth=10**6)))
    long = admitted(queue, prompt("long", 1, length=100_000))
    arrived: dict[int, int] = {}
    waits: list[int] = []
    gaps: list[float] = []
    while long.remaining:
        step = len(gaps)
        if step % 4 == 0:
            short = prompt(f"s{step}", 2 + step, length=50)
            queue.add(short)
            arrived[short.arrival] = step
        queue.admit()
        chosen = queue.next_prompt()
        assert chosen is not None
        tokens = min(queue.chunk(), chosen.remaining)
        gaps.append(0.05 + 0.03 + tokens * (1 + chosen.computed / 100_000) / 1000)
        queue.computed(chosen, tokens)
        queue.observe(gaps[-1], tokens, 1)
        if chosen is not long and not chosen.remaining:
            waits.append(step - arrived[chosen.arrival])
            queue.drop(chosen)
    assert max(waits) <= 3
    assert max(gaps[50:]) < 0.25, "the target, and what the guess is off by"
    assert len(gaps) < 100_000 / 50 * 4 / 3, "it has what the short ones leave"


def test_the_lowest_then_the_youngest_is_preempted() -> None:
    queue = scheduler(max_sequences=8, memory=256 * 10 * 3)
    for place, priority in enumerate([0, 1, 0]):
        queue.add(prompt(f"r{place}", place, priority=priority, growth=5))
    started = [queue.start(each)[0] for each in queue.admit()]
    assert queue.victim() is None
    for running in started:
        grow(queue, running, 300)
    victim = queue.victim()
    assert isinstance(victim, Running)
    assert name_of(victim) == "r2"
    queue.drop(victim)
    queue.requeue(prompt("r2", 2, length=300))
    assert name_of(queue.victim()) == "r0"


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=20)
)
def test_everything_is_served_in_the_end(plan: list[tuple[int, int, int]]) -> None:
    queue = scheduler(memory=200_000)
    for place, (length, priority, count) in enumerate(plan):
        try:
            queue.add(prompt(f"r{place}", place, length=length, priority=priority, count=count))
        except ServerError:
            continue
    for _ in range(10_000):
        queue.admit()
        chosen = queue.next_prompt()
        if chosen is not None:
            count = min(queue.chunk(), chosen.remaining)
            queue.computed(chosen, count)
            if not chosen.remaining:
                queue.start(chosen)
        elif queue.running:
            queue.drop(queue.running[0])
        if not (queue.waiting or queue.prefilling or queue.running):
            return
        assert sum(each.count for each in queue.prefilling) + len(queue.running) <= 4
    raise AssertionError(f"{queue.waiting} and {queue.prefilling} are left")


def test_a_lone_sequence_gives_way_while_another_prompt_is_computed() -> None:
    queue = scheduler(memory=256 * 10 * 10)
    [grown] = queue.start(admitted(queue, prompt("grown", 0, growth=2000)))
    assert name_of(admitted(queue, prompt("long", 1, length=1200))) == "long"
    grow(queue, grown, 1400)
    assert queue.victim() is grown


@given(
    st.lists(
        st.tuples(
            st.integers(1, 1500),
            st.integers(1, 700),
            st.integers(0, 2),
            st.integers(1, 3),
            st.sampled_from("ab"),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(30_000, 120_000),
)
@example([(1, 1, 0, 1, "a"), (1349, 700, 0, 2, "a"), *[(1, 1, 0, 1, "a")] * 3], 40960)
def test_no_mix_of_requests_exceeds_the_memory(
    plan: list[tuple[int, int, int, int, str]], memory: int
) -> None:
    queue = scheduler(memory=memory, sequence_bytes=lambda tokens: tokens * 10)
    for place, (length, growth, priority, count, account) in enumerate(plan):
        asked = {"growth": growth, "priority": priority, "account": account}
        with contextlib.suppress(ServerError):
            queue.add(prompt(f"r{place}", place, length, count=count, **asked))
    ends = {each.arrival: each.length + each.growth for each in queue.waiting}
    for _ in range(30_000):
        if not (queue.waiting or queue.prefilling or queue.running):
            return
        queue.admit()
        if (chosen := queue.next_prompt()) is not None:
            queue.computed(chosen, min(queue.chunk(), chosen.remaining))
            if not chosen.remaining:
                queue.start(chosen)
        for running in queue.running:
            queue.grew(running)
        for running in [each for each in queue.running if each.length >= ends[each.arrival]]:
            queue.drop(running)
        while (victim := queue.victim()) is not None:
            queue.drop(victim)
            if queue.fits_alone(victim.length, victim.count):
                queue.requeue(preempted(victim))
        assert bytes_of([*queue.prefilling, *queue.running]) <= memory
    raise AssertionError(f"{queue.waiting} and {queue.prefilling} are left")


def preempted(victim: Prefilling | Running) -> Waiting:
    if isinstance(victim, Prefilling):
        return Waiting(**victim.given())
    kept = {"growth": victim.growth, "priority": victim.priority, "account": victim.account}
    return prompt(name_of(victim), victim.arrival, victim.length, **kept)


def bytes_of(active: list[Prefilling | Running]) -> int:
    """What sequences take, padded to the longest of their class, reckoned by hand."""
    # One that was admitted for the tokens that it will have lies with sequences of that length from the start.
    classes = [max(length_class(each.length), each.length_class) for each in active]
    size = 0
    for name in set(classes):
        group = [each for each, own in zip(active, classes, strict=True) if own == name]
        longest = max(each.length for each in group)
        size += sum(each.count for each in group) * -(-longest // CAPACITY_STEP) * CAPACITY_STEP * 10
    return size


def test_a_caller_of_whom_nothing_runs_comes_before_anothers_second_request() -> None:
    queue = scheduler(max_sequences=3)
    for place, account in enumerate("aaaabc"):
        queue.add(prompt(f"{account}{place}", place, account=account))
    assert [name_of(each) for each in queue.admit()] == ["a0", "b4", "c5"]


def test_a_place_among_several_is_given_to_a_caller_who_has_none() -> None:
    queue = scheduler()
    for place in range(6):
        queue.add(prompt(f"a{place}", place, account="a"))
    for each in queue.admit()[:2]:
        queue.computed(each, each.remaining)
        queue.start(each)
    assert queue.victim() is None
    queue.add(prompt("b", 6, account="b"))
    victim = queue.victim()
    assert name_of(victim) == "a3"  # the youngest, of which nothing is computed
    assert isinstance(victim, Prefilling)
    queue.drop(victim)
    queue.requeue(Waiting(**victim.given()))
    assert queue.victim() is None
    assert [name_of(each) for each in queue.admit()] == ["b"]
    assert name_of(queue.next_prompt()) == "b"
    queue.add(prompt("c", 7, account="c", priority=-1))
    assert queue.victim() is None, "its priority is lower"


def settle(queue: Scheduler) -> None:
    """Preempt and admit until nothing changes."""
    while True:
        while (victim := queue.victim()) is not None:
            queue.drop(victim)
            queue.requeue(preempted(victim))
        if not queue.admit():
            return


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 5)), min_size=1, max_size=30))
def test_nobody_waits_without_a_place_while_another_has_several(plan: list[tuple[str, int]]) -> None:
    queue = scheduler(memory=10**9)
    for place, (account, steps) in enumerate(plan):
        queue.add(prompt(f"{account}{place}", place, account=account))
        for _ in range(steps):
            queue.admit()
            if (chosen := queue.next_prompt()) is not None:
                queue.computed(chosen, chosen.remaining)
                queue.start(chosen)
            if place % 3 == 0 and queue.running:
                queue.drop(queue.running[0])
        settle(queue)
        places = Counter(each.account for each in (*queue.prefilling, *queue.running))
        if {each.account for each in queue.waiting} - places.keys():
            assert set(places.values()) == {1}
