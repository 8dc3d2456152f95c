"""The store of responses: its bounds, its owners, its file."""

import contextlib
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
    digest,
)
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
    entries, size = stored(store, "SELECT COUNT(*), COALESCE(SUM(LENGTH(body)), 0) FROM entries")
    return int(entries), int(size)


def stored(store: ResponseStore, question: str) -> tuple[Any, ...]:
    """The first row that the database answers with."""
    with store._database.transaction() as transaction:
        row: tuple[Any, ...] = transaction.execute(question).fetchone()
    return row


def save(history: OwnedHistory, name: str, **fields: Any) -> None:
    history.keep(name, turn(name, **fields))


def knows(history: OwnedHistory, name: str) -> bool:
    try:
        history.response(name)
    except ServerError:
        return False
    return True


def test_a_chain_is_read_from_its_beginning() -> None:
    history = ResponseStore().for_owner(None)
    save(history, "a")
    save(history, "b", previous="a")
    save(history, "c", previous="b")
    ids = [item["id"] for item in history.items("c")]
    assert ids == [f"msg_{name}_{end}" for name in "abc" for end in ("in", "out")]
    assert [item["id"] for item in history.input_items(history.response("b"))] == [
        "msg_a_in",
        "msg_a_out",
        "msg_b_in",
    ]


def test_a_chain_with_a_missing_link_is_not_found() -> None:
    history = ResponseStore().for_owner(None)
    save(history, "a")
    save(history, "b", previous="a")
    history.delete_response("a")
    with pytest.raises(ServerError, match="'a'"):
        history.items("b")


def test_the_least_recently_used_makes_room() -> None:
    history = ResponseStore(entries=2, clock=Clock()).for_owner(None)
    save(history, "a")
    save(history, "b")
    history.response("a")
    save(history, "c")
    assert [knows(history, name) for name in "abc"] == [True, False, True]


def test_a_chain_that_is_used_keeps_its_beginning() -> None:
    history = ResponseStore(entries=3, clock=Clock()).for_owner(None)
    save(history, "a")
    save(history, "b", previous="a")
    save(history, "other")
    history.items("b")
    save(history, "c", previous="b")
    assert not knows(history, "other")
    assert len(history.items("c")) == 6


def test_bytes_are_bounded_and_what_is_larger_than_all_is_not_kept() -> None:
    store = ResponseStore(megabytes=0.01, clock=Clock())
    history = store.for_owner(None)
    save(history, "a", padding=4000)
    save(history, "b", padding=4000)
    save(history, "c", padding=4000)
    assert [knows(history, name) for name in "abc"] == [False, True, True]
    save(history, "d", padding=20_000)
    assert [knows(history, name) for name in "bcd"] == [True, True, False]
    assert figures(store)[1] <= 0.01 * 2**20


def test_what_is_too_old_is_forgotten_even_if_it_is_used() -> None:
    clock = Clock()
    history = ResponseStore(hours=1, clock=clock).for_owner(None)
    save(history, "a")
    clock.now += 1800
    assert knows(history, "a")
    clock.now += 1801
    assert not knows(history, "a")


def test_owners_know_nothing_of_each_other() -> None:
    store = ResponseStore()
    one, two = store.for_owner("one"), store.for_owner("two")
    save(one, "a")
    one.save_conversation(StoredConversation(id="conv", created_at=1))
    assert not knows(two, "a")
    for attempt in (
        lambda: two.delete_response("a"),
        lambda: two.items("a"),
        lambda: two.item("msg_a_in"),
        lambda: two.conversation("conv"),
        lambda: two.delete_conversation("conv"),
    ):
        with pytest.raises(ServerError):
            attempt()
    save(two, "a", padding=3)
    assert one.response("a").response["output"][0]["content"] == ""


def test_items_are_found_by_their_id() -> None:
    history = ResponseStore().for_owner(None)
    save(history, "a")
    assert history.item("msg_a_in")["content"] == "a"
    assert history.item("msg_a_out")["role"] == "assistant"
    with pytest.raises(ServerError):
        history.item("msg_b_in")


def test_a_conversation_takes_what_is_new() -> None:
    history = ResponseStore().for_owner(None)
    history.save_conversation(StoredConversation(id="conv", created_at=1, items=[{"id": "1"}]))
    history.add_to_conversation("conv", [{"id": "1"}, {"id": "2"}])
    assert history.conversation("conv") == [{"id": "1"}, {"id": "2"}]
    history.add_to_conversation("gone", [{"id": "1"}])
    with pytest.raises(ServerError):
        history.conversation("gone")


def named(name: str, conversation: StoredConversation) -> None:
    conversation.metadata[name] = "here"


def test_a_response_is_no_conversation() -> None:
    history = ResponseStore().for_owner(None)
    save(history, "a")
    with pytest.raises(ServerError):
        history.conversation("a")
    with pytest.raises(ServerError):
        history.delete_conversation("a")


def test_a_file_survives(tmp_path: Path) -> None:
    path = tmp_path / "new" / "store.db"
    first = ResponseStore(open_file(path, SCHEMA))
    save(first.for_owner("one"), "a")
    held = figures(first)
    first.close()
    second = ResponseStore(open_file(path, SCHEMA))
    assert figures(second) == held
    assert held[0] == 1
    assert knows(second.for_owner("one"), "a")
    second.close()


def test_a_response_that_cannot_be_read_or_stored_now_is_refused_with_when_to_try_again() -> None:
    database = open_memory(SCHEMA)
    history = ResponseStore(database).for_owner(None)
    save(history, "a")
    database.connection.execute("PRAGMA query_only = ON")
    for act in (partial(history.response, "a"), partial(history.delete_response, "a")):
        with pytest.raises(ServerError, match="cannot be read or written now") as caught:
            act()
        assert caught.value.report.status == 503


def test_nothing_is_kept_where_nothing_may_be() -> None:
    history = ResponseStore(entries=0).for_owner(None)
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
    entries, most = 4, 2000
    clock = Clock()
    store = ResponseStore(getattr(stores, kind)(), entries=entries, megabytes=most / 2**20, clock=clock)
    held: list[tuple[str, str, int]] = []
    for verb, owner, name, padding in steps:
        history = store.for_owner(owner)
        known = next((each for each in held if each[:2] == (owner, name)), None)
        if verb == "read":
            assert knows(history, name) == (known is not None)
            held.sort(key=lambda each: each[:2] == (owner, name))
        elif verb == "delete":
            with contextlib.nullcontext() if known else pytest.raises(ServerError):
                history.delete_response(name)
            held = [each for each in held if each != known]
        else:
            save(history, name, padding=padding)
            held = [each for each in held if each != known]
            size = len(msgspec.json.encode(turn(name, padding=padding)))
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
        assert store.begin(owner, name, "response", 9) == b'{"respons'
    assert stored(store, "SELECT COUNT(*) FROM items WHERE entry NOT IN (SELECT id FROM entries)") == (0,)
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_added_to_a_conversation_at_once_is_there(stores: Stores, kind: str) -> None:
    store = ResponseStore(getattr(stores, kind)())
    store.for_owner("a").save_conversation(StoredConversation(id="conv", created_at=1))

    def add(writer: int) -> None:
        history = store.for_owner("a")
        for number in range(20):
            if writer:
                history.add_to_conversation("conv", [{"id": f"{writer}-{number}"}])
            else:
                history.change_conversation("conv", partial(named, str(number)))

    with ThreadPoolExecutor(5) as writers:
        list(writers.map(add, range(5)))
    found = store.for_owner("a").stored_conversation("conv")
    for writer in range(1, 5):
        mine = [item["id"] for item in found.items if item["id"].startswith(f"{writer}-")]
        assert mine == [f"{writer}-{number}" for number in range(20)]
    assert len(found.items) == 80
    assert len(found.metadata) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_that_was_changed_or_deleted_meanwhile_is_not_written_over(
    stores: Stores, kind: str
) -> None:
    store = ResponseStore(getattr(stores, kind)())
    store.put("a", "conv", "conversation", b"one", [])
    read = digest(b"one")
    assert store.put("a", "conv", "conversation", b"two", [], read)
    assert not store.put("a", "conv", "conversation", b"three", [], read)
    assert store.get("a", "conv", "conversation") == b"two"
    store.delete("a", "conv", "conversation")
    assert not store.put("a", "conv", "conversation", b"four", [], digest(b"two"))
    assert store.get("a", "conv", "conversation") is None


def test_an_owner_who_stores_without_end_pushes_out_nothing_but_its_own() -> None:
    store = ResponseStore(entries=20, clock=Clock())
    bob, alice = store.for_owner("bob"), store.for_owner("alice")
    for number in range(5):
        save(bob, f"b{number}")
    for number in range(1030):
        alice.save_conversation(StoredConversation(id=f"conv_{number}", created_at=1))
    assert all(knows(bob, f"b{number}") for number in range(5))
    assert figures(store)[0] == 20
    assert alice.conversation("conv_1029") == []


def test_bytes_are_shared_by_owner_too() -> None:
    store = ResponseStore(megabytes=0.02, clock=Clock())
    bob, alice = store.for_owner("bob"), store.for_owner("alice")
    save(bob, "b", padding=5000)
    for number in range(50):
        save(alice, f"a{number}", padding=2000)
    assert knows(bob, "b")
    assert knows(alice, "a49")


def test_the_head_of_a_large_conversation_is_read_without_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    history = ResponseStore().for_owner("me")
    items = [{"id": str(number), "type": "message", "text": "x" * 1000} for number in range(2000)]
    metadata = {"items": '","items":[', "quote": '"\\'}
    history.save_conversation(StoredConversation(id="large", created_at=7, metadata=metadata, items=items))
    history.save_conversation(StoredConversation(id="empty", created_at=8))
    with monkeypatch.context() as watched:
        watched.setattr(ResponseStore, "get", lambda *_: pytest.fail("all of it was read"))
        head = history.conversation_head("large")
    assert (head.id, head.created_at, head.metadata, head.items) == ("large", 7, metadata, [])
    assert history.conversation_head("empty").created_at == 8
    with pytest.raises(ServerError, match="never stored"):
        history.conversation_head("none")
    with pytest.raises(ServerError, match="never stored"):
        ResponseStore().for_owner("you").conversation_head("large")


def test_what_is_deleted_from_memory_leaves_it() -> None:
    store = ResponseStore()
    history = store.for_owner("me")
    history.save_conversation(
        StoredConversation(id="large", created_at=1, items=[{"id": "1", "text": "x" * (20 << 20)}])
    )
    [pages] = stored(store, "PRAGMA page_count")
    history.delete_conversation("large")
    assert stored(store, "PRAGMA page_count")[0] < pages // 100
