"""The store of responses: its bounds, its owners, its file."""

import contextlib
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pippin.api.sqlite import SQLite, open_file, open_memory
from pippin.api.stored_responses.response_store import (
    SCHEMA,
    OwnedHistory,
    ResponseStore,
    StoredConversation,
    StoredResponse,
    bytes_of,
    rows_of,
)
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def turn(name: str, previous: str | None = None, padding: int = 0) -> StoredResponse:
    output = [{"id": f"msg_{name}_out", "type": "message", "role": "assistant", "content": "x" * padding}]
    asked = [{"id": f"msg_{name}_in", "type": "message", "role": "user", "content": name}]
    return StoredResponse(response={"id": name, "output": output}, input=asked, previous=previous)


def figures(store: ResponseStore) -> tuple[int, int]:
    """How many entries there are, and their bytes."""
    entries, size = stored(store, "SELECT COUNT(*), COALESCE(SUM(bytes), 0) FROM entries")
    return int(entries), int(size)


def stored(store: ResponseStore, question: str) -> tuple[Any, ...]:
    """The first row that the database answers with."""
    with store.database.transaction() as transaction:
        row: tuple[Any, ...] = transaction.execute(question).fetchone()
    return row


def page(found: dict[str, Any]) -> list[str]:
    """The ids of a page."""
    return [msgspec.json.decode(item)["id"] for item in found["data"]]


def opened(
    database: SQLite | None = None, clock: Callable[[], float] = time.time, **bounds: float
) -> ResponseStore:
    """A store in memory with these bounds, or over that database."""
    options = {f"response_store_{name}": bound for name, bound in bounds.items()}
    store = ResponseStore(ServerOptions(**options), clock)  # type: ignore[arg-type]
    store.database = database or store.database
    return store


def save(history: OwnedHistory, name: str, **fields: Any) -> None:
    history.keep(name, turn(name, **fields))


def knows(history: OwnedHistory, name: str) -> bool:
    try:
        history.response(name)
    except ServerError:
        return False
    return True


def test_a_chain_is_read_from_its_beginning() -> None:
    history = opened().for_owner("")
    save(history, "a")
    save(history, "b", previous="a")
    save(history, "c", previous="b")
    ids = [item["id"] for item in history.items("c")]
    assert ids == [f"msg_{name}_{end}" for name in "abc" for end in ("in", "out")]
    assert page(history.input_page("b", {"order": "asc"})) == ["msg_a_in", "msg_a_out", "msg_b_in"]


def test_a_chain_with_a_missing_link_is_not_found() -> None:
    history = opened().for_owner("")
    save(history, "a")
    save(history, "b", previous="a")
    history.delete("response", "a")
    with pytest.raises(ServerError, match="'a'"):
        history.items("b")


def test_the_least_recently_used_makes_room() -> None:
    history = opened(entries=2, clock=Clock()).for_owner("")
    save(history, "a")
    save(history, "b")
    history.response("a")
    save(history, "c")
    assert [knows(history, name) for name in "abc"] == [True, False, True]


def test_a_chain_that_is_used_keeps_its_beginning() -> None:
    history = opened(entries=3, clock=Clock()).for_owner("")
    save(history, "a")
    save(history, "b", previous="a")
    save(history, "other")
    history.items("b")
    save(history, "c", previous="b")
    assert not knows(history, "other")
    assert len(history.items("c")) == 6


def test_bytes_are_bounded_and_what_is_larger_than_all_is_not_kept() -> None:
    store = opened(mb=0.01, clock=Clock())
    history = store.for_owner("")
    save(history, "a", padding=4000)
    save(history, "b", padding=4000)
    save(history, "c", padding=4000)
    assert [knows(history, name) for name in "abc"] == [False, True, True]
    save(history, "d", padding=20_000)
    assert [knows(history, name) for name in "bcd"] == [True, True, False]
    assert figures(store)[1] <= 0.01 * 2**20


def test_what_is_too_old_is_forgotten_even_if_it_is_used() -> None:
    clock = Clock()
    history = opened(hours=1, clock=clock).for_owner("")
    save(history, "a")
    clock.now += 1800
    assert knows(history, "a")
    clock.now += 1801
    assert not knows(history, "a")


def test_owners_know_nothing_of_each_other() -> None:
    store = opened()
    one, two = store.for_owner("one"), store.for_owner("two")
    save(one, "a")
    one.save_conversation(StoredConversation(id="conv", created_at=1))
    assert not knows(two, "a")
    for attempt in (
        lambda: two.delete("response", "a"),
        lambda: two.items("a"),
        lambda: two.item("msg_a_in"),
        lambda: two.conversation("conv"),
        lambda: two.delete("conversation", "conv"),
    ):
        with pytest.raises(ServerError):
            attempt()
    save(two, "a", padding=3)
    assert one.item("msg_a_out")["content"] == ""


def test_items_are_found_by_their_id() -> None:
    history = opened().for_owner("")
    save(history, "a")
    assert history.item("msg_a_in")["content"] == "a"
    assert history.item("msg_a_out")["role"] == "assistant"
    with pytest.raises(ServerError):
        history.item("msg_b_in")


def test_a_conversation_takes_what_is_new() -> None:
    history = opened().for_owner("")
    history.save_conversation(StoredConversation(id="conv", created_at=1), [{"id": "1"}])
    history.add_to_conversation("conv", [{"id": "1"}, {"id": "2"}])
    assert history.conversation("conv") == [{"id": "1"}, {"id": "2"}]
    history.add_to_conversation("gone", [{"id": "1"}])
    with pytest.raises(ServerError):
        history.conversation("gone")


def test_a_response_is_no_conversation() -> None:
    history = opened().for_owner("")
    save(history, "a")
    with pytest.raises(ServerError):
        history.conversation("a")
    with pytest.raises(ServerError):
        history.delete("conversation", "a")


def test_a_file_survives(tmp_path: Path) -> None:
    path = tmp_path / "new" / "store.db"
    first = opened(open_file(path, SCHEMA))
    save(first.for_owner("one"), "a")
    held = figures(first)
    first.database.close()
    second = opened(open_file(path, SCHEMA))
    assert figures(second) == held
    assert held[0] == 1
    assert knows(second.for_owner("one"), "a")
    second.database.close()


def test_what_is_stored_is_read_on_a_full_disk_and_a_change_is_refused_with_when_to_try_again() -> None:
    database = open_memory(SCHEMA)
    history = opened(database).for_owner("")
    save(history, "a")
    history.save_conversation(StoredConversation(id="conv", created_at=1), [{"id": "1"}])
    database.connection.execute("PRAGMA query_only = ON")
    assert history.response("a")["id"] == "a"
    assert len(history.items("a")) == 2
    assert page(history.input_page("a", {})) == ["msg_a_in"]
    assert page(history.conversation_page("conv", {})) == ["1"]
    for act in (
        partial(history.delete, "response", "a"),
        partial(history.change_metadata, "conv", {}),
        partial(history.add_items, "conv", [{"id": "2"}]),
        partial(history.delete_item, "conv", "1"),
    ):
        with pytest.raises(ServerError, match="cannot be read or written now") as caught:
            act()
        assert caught.value.report.status == 503


def test_a_page_of_a_chain_goes_on_from_any_item_both_ways() -> None:
    history = opened().for_owner("me")
    save(history, "a")
    save(history, "b", previous="a")
    save(history, "c", previous="b")
    oldest_first = ["msg_a_in", "msg_a_out", "msg_b_in", "msg_b_out", "msg_c_in"]
    for order, ids in (("asc", oldest_first), ("desc", oldest_first[::-1])):
        for limit in (1, 2, 5, 100):
            for number, after in enumerate([None, *ids]):
                query = {"order": order, "limit": str(limit)} | ({} if after is None else {"after": after})
                found = history.input_page("c", query)
                assert page(found) == ids[number : number + limit]
                assert found["has_more"] == (len(ids) > number + limit)
                assert found["last_id"] == (page(found) or [""])[-1]
    with pytest.raises(ServerError, match="after"):  # an item of the output, which is no input
        history.input_page("c", {"after": "msg_c_out"})
    with pytest.raises(ServerError, match="after"):
        history.input_page("c", {"after": "another"})


def test_a_page_of_a_conversation_reads_no_other_item(monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(mb=256)
    history = store.for_owner("me")
    history.save_conversation(StoredConversation(id="conv", created_at=1))
    for start in range(0, 60_000, 20_000):
        history.add_items("conv", [{"id": str(start + number), "text": "x"} for number in range(20_000)])
    monkeypatch.setattr("pippin.api.stored_responses.response_store.from_json", pytest.fail)
    begun = time.process_time()
    assert page(history.conversation_page("conv", {"limit": "2", "after": "30000"})) == ["29999", "29998"]
    assert msgspec.json.decode(history.item_of("conv", "7"))["id"] == "7"
    assert time.process_time() - begun < 0.1


def test_small_items_count_as_what_they_take() -> None:
    store = opened(mb=256)
    history = store.for_owner("key:" + "0" * 32)
    items = [{"id": f"msg_{number:032x}", "role": "user", "content": "a"} for number in range(20_000)]
    history.save_conversation(StoredConversation(id="conv", created_at=1), items)
    [size], [pages], [of_page] = (
        stored(store, f"PRAGMA {name}" if name.startswith("page") else name)
        for name in ("SELECT SUM(bytes) FROM entries", "page_count", "page_size")
    )
    assert 0.9 < size / (pages * of_page) < 1.5


def test_what_is_decoded_is_told_beforehand_with_the_memory_that_small_items_take() -> None:
    told: list[int] = []
    history = opened().for_owner("me", told.append)
    items = [{"id": str(number), "content": [{"text": "a"}]} for number in range(1000)]
    history.save_conversation(StoredConversation(id="conv", created_at=1), items)
    assert not told
    tracemalloc.start()
    found = history.conversation("conv")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 1000
    assert 0.7 < told[0] / held < 2


def test_the_bytes_of_an_entry_are_those_of_its_rows_whatever_was_changed() -> None:
    store = opened()
    history = store.for_owner("me")
    history.save_conversation(StoredConversation(id="conv", created_at=1), [{"id": "1"}, {"id": "ü" * 40}])
    history.add_items("conv", [{"id": "2", "text": "x" * 1000}, {"id": "3"}])
    history.change_metadata("conv", {"a": "b" * 100})
    history.delete_item("conv", "2")
    history.add_to_conversation("conv", [{"id": "3"}, {"id": "4"}])
    head = stored(store, "SELECT LENGTH(body) FROM entries")[0]
    rows = rows_of(history.conversation("conv"), 0)
    wanted = bytes_of("me", "conv", head) + sum(bytes_of("me", own, len(body)) for _, own, body in rows)
    assert figures(store) == (1, wanted)


def test_nothing_is_kept_where_nothing_may_be() -> None:
    history = opened(entries=0).for_owner("")
    save(history, "a")
    assert not knows(history, "a")


names = st.sampled_from("abcdef")


class Stores:
    """A store of each kind, empty for each example."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def memory(self) -> SQLite | None:
        return None

    def file(self) -> SQLite:
        self._made += 1
        return open_file(self._folder / f"{self._made}.db", SCHEMA)


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def weight(owner: str, name: str, padding: int) -> int:
    """What a turn counts."""
    response = turn(name, padding=padding)
    head = len(msgspec.json.encode(response.response | {"output": []}))
    return bytes_of(owner, name, head) + sum(
        bytes_of(owner, own, len(body)) for _, own, body in rows_of(response.items, 0)
    )


Step = tuple[str, str, str, int]
KINDS = ("memory", "file")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["save", "read", "delete"]),
            st.sampled_from(["", "b\0b"]),
            names,
            st.integers(0, 600),
        ),
        max_size=40,
    )
)
def test_every_store_holds_what_a_list_would(stores: Stores, kind: str, steps: list[Step]) -> None:
    """The list has the entries of all owners, the least recently used first."""
    entries, most = 4, 4000
    clock = Clock()
    store = opened(getattr(stores, kind)(), entries=entries, mb=most / 2**20, clock=clock)
    held: list[tuple[str, str, int]] = []
    for verb, owner, name, padding in steps:
        history = store.for_owner(owner)
        known = next((each for each in held if each[:2] == (owner, name)), None)
        if verb == "read":
            assert knows(history, name) == (known is not None)
            held.sort(key=lambda each: each[:2] == (owner, name))
        elif verb == "delete":
            with contextlib.nullcontext() if known else pytest.raises(ServerError):
                history.delete("response", name)
            held = [each for each in held if each != known]
        else:
            save(history, name, padding=padding)
            held = [each for each in held if each != known]
            size = weight(owner, name, padding)
            held += [(owner, name, size)] if size <= most else []
            for figure, bound in ((lambda each: 1, entries), (lambda each: each[2], most)):
                while sum(map(figure, held)) > bound:
                    owners = {
                        each: sum(figure(one) for one in held if one[0] == each)
                        for each in {o for o, *_ in held}
                    }
                    largest = {each for each in owners if owners[each] == max(owners.values())}
                    if len(largest) > 1:
                        return  # whichever of them gives way
                    held.remove(next(each for each in held if each[0] in largest))
        assert figures(store) == (len(held), sum(size for *_, size in held))
    for owner, name, _ in held:
        assert store.for_owner(owner).item(f"msg_{name}_in")["content"] == name
    assert stored(store, "SELECT COUNT(*) FROM items WHERE entry NOT IN (SELECT key FROM entries)") == (0,)
    store.database.close()


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_added_to_a_conversation_at_once_is_there(stores: Stores, kind: str) -> None:
    store = opened(getattr(stores, kind)())
    store.for_owner("a").save_conversation(StoredConversation(id="conv", created_at=1))

    def add(writer: int) -> None:
        history = store.for_owner("a")
        for number in range(20):
            if writer:
                history.add_to_conversation("conv", [{"id": f"{writer}-{number}"}])
            else:
                history.change_metadata("conv", {"number": str(number)})

    with ThreadPoolExecutor(5) as writers:
        list(writers.map(add, range(5)))
    found = store.for_owner("a").conversation("conv")
    for writer in range(1, 5):
        mine = [item["id"] for item in found if item["id"].startswith(f"{writer}-")]
        assert mine == [f"{writer}-{number}" for number in range(20)]
    assert len(found) == 80
    assert store.for_owner("a").head("conv").metadata == {"number": "19"}


def test_an_owner_who_stores_without_end_pushes_out_nothing_but_its_own() -> None:
    store = opened(entries=20, clock=Clock())
    bob, alice = store.for_owner("bob"), store.for_owner("alice")
    for number in range(5):
        save(bob, f"b{number}")
    for number in range(1030):
        alice.save_conversation(StoredConversation(id=f"conv_{number}", created_at=1))
    assert all(knows(bob, f"b{number}") for number in range(5))
    assert figures(store)[0] == 20
    assert alice.conversation("conv_1029") == []


def test_bytes_are_shared_by_owner_too() -> None:
    store = opened(mb=0.025, clock=Clock())
    bob, alice = store.for_owner("bob"), store.for_owner("alice")
    save(bob, "b", padding=5000)
    for number in range(50):
        save(alice, f"a{number}", padding=2000)
    assert knows(bob, "b")
    assert knows(alice, "a49")


def test_the_head_of_a_large_conversation_is_read_without_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    history = opened().for_owner("me")
    metadata = {"items": '","items":[', "quote": '"\\'}
    conversation = StoredConversation(id="large", created_at=7, metadata=metadata)
    history.save_conversation(conversation, [{"id": str(number)} for number in range(2000)])
    with monkeypatch.context() as watched:
        watched.setattr(OwnedHistory, "_bodies", lambda *_: pytest.fail("items were read"))
        assert history.head("large") == conversation
    with pytest.raises(ServerError, match="never stored"):
        history.head("none")
    with pytest.raises(ServerError, match="never stored"):
        opened().for_owner("you").head("large")


def test_what_is_deleted_from_memory_leaves_it() -> None:
    store = opened()
    history = store.for_owner("me")
    history.save_conversation(
        StoredConversation(id="large", created_at=1), [{"id": "1", "text": "x" * (20 << 20)}]
    )
    [pages] = stored(store, "PRAGMA page_count")
    history.delete("conversation", "large")
    assert stored(store, "PRAGMA page_count")[0] < pages // 100
