from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pippin.core.conversation import Message, Text, Tool
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Detokenize, Generate
from pippin.runtime.replicas import BLOCK, Prefix, Seat, Seen, choose, prefix_of

NO_SPEC: Any = None
NO_WORKER: Any = None


def prompt(*turns: str, salt: str | None = None, tools: tuple[Tool, ...] = ()) -> Prefix:
    messages = tuple(Message("user", (Text(turn),)) for turn in turns)
    return prefix_of(Generate(GenerationRequest(model="m", messages=messages, cache_salt=salt, tools=tools)))


def seat(running: int = 0, *, sent: str = "") -> Seat:
    """A seat whose worker is never asked."""
    found = Seat(NO_SPEC, NO_WORKER, running=running)
    found.seen.add(prompt(sent))
    return found


def test_a_conversation_that_goes_on_begins_with_its_earlier_blocks() -> None:
    earlier, later = prompt("a" * 2000), prompt("a" * 2000, "b" * 2000)
    assert len(earlier) > 5
    assert later[: len(earlier)] == earlier


def test_texts_that_differ_early_share_no_block() -> None:
    assert not set(prompt("x" + "a" * 2000)) & set(prompt("y" + "a" * 2000))


def test_salts_and_tools_make_other_prompts() -> None:
    same = "a" * 2000
    assert not set(prompt(same)) & set(prompt(same, salt="alice"))
    assert not set(prompt(same)) & set(prompt(same, tools=(Tool("weather"),)))


def test_a_short_prompt_and_a_task_without_one_have_no_blocks() -> None:
    assert prompt("hello") == ()
    assert prefix_of(Detokenize((1, 2))) == ()


def test_a_request_goes_to_who_has_seen_most_of_it() -> None:
    here, there = seat(2, sent="a" * 2000), seat(0)
    assert choose(prompt("a" * 2000, "more" * 200), [here, there]) is here


def test_a_much_busier_replica_is_passed_over() -> None:
    here, there = seat(8, sent="a" * 2000), seat(2)
    assert choose(prompt("a" * 2000), [here, there]) is there


def test_a_new_prompt_goes_to_the_least_busy_and_then_to_who_was_sent_least() -> None:
    assert choose(prompt("new" * 500), [seat(1), idle := seat(0)]) is idle
    assert choose(prompt("new" * 500), [seat(sent="something" * 500), fresh := seat()]) is fresh


def test_nobody_is_chosen_of_nobody() -> None:
    assert choose((), []) is None


def test_what_is_remembered_is_bounded_and_the_end_of_a_prompt_goes_first() -> None:
    seen = Seen(limit=10)
    long = prompt("a" * BLOCK * 20)
    seen.add(long)
    assert len(seen) == 10
    assert seen.matched(long) == 10


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=30))
def test_a_replica_knows_exactly_the_prefixes_it_was_sent(prompts: list[list[int]]) -> None:
    def blocks(words: list[int]) -> Prefix:
        return tuple(repr(words[: end + 1]).encode() for end in range(len(words)))

    seen = Seen()
    for words in prompts:
        seen.add(blocks(words))
    for words in prompts:
        assert seen.matched(blocks(words)) == len(words)
        assert seen.matched(blocks([*words, 9])) == len(words)
