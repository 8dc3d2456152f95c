"""The store of responses: its bounds, its owners, its file."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.api.storage.response_store import (
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
    assert store.total_bytes <= 0.01 * 2**20


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


def test_all_that_is_added_to_a_conversation_at_once_is_there() -> None:
    store = ResponseStore()
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


def test_an_entry_that_was_changed_or_deleted_meanwhile_is_not_written_over() -> None:
    store = ResponseStore()
    store.put("a", "conv", "conversation", b"one", [])
    read = digest(b"one")
    assert store.put("a", "conv", "conversation", b"two", [], read)
    assert not store.put("a", "conv", "conversation", b"three", [], read)
    assert store.get("a", "conv", "conversation") == b"two"
    store.delete("a", "conv", "conversation")
    assert not store.put("a", "conv", "conversation", b"four", [], digest(b"two"))
    assert store.get("a", "conv", "conversation") is None


def test_a_response_is_no_conversation() -> None:
    history = ResponseStore().for_owner(None)
    save(history, "a")
    with pytest.raises(ServerError):
        history.conversation("a")
    with pytest.raises(ServerError):
        history.delete_conversation("a")


def test_a_file_survives(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "store.db")
    first = ResponseStore(path)
    save(first.for_owner("one"), "a")
    size = first.total_bytes
    first.close()
    second = ResponseStore(path)
    assert (second.total_entries, second.total_bytes) == (1, size)
    assert knows(second.for_owner("one"), "a")
    second.close()


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"no database" * 100)
    store = ResponseStore(str(path))
    save(store.for_owner(None), "a")
    store.close()
    assert (tmp_path / "store.db.unreadable").exists()


def test_nothing_is_kept_where_nothing_may_be() -> None:
    history = ResponseStore(entries=0).for_owner(None)
    save(history, "a")
    assert not knows(history, "a")


names = st.sampled_from("abcdef")


@given(
    st.lists(st.tuples(st.sampled_from(["save", "read", "delete"]), names, st.integers(0, 600)), max_size=40)
)
def test_the_figures_are_those_of_the_entries(steps: list[tuple[str, str, int]]) -> None:
    store = ResponseStore(entries=4, megabytes=0.002, clock=Clock())
    history = store.for_owner(None)
    for verb, name, padding in steps:
        if verb == "save":
            save(history, name, padding=padding)
        elif knows(history, name) and verb == "delete":
            history.delete_response(name)
        rows = store._database.execute("SELECT bytes, LENGTH(body) FROM entries").fetchall()
        assert store.total_entries == len(rows) <= 4
        assert store.total_bytes == sum(size for size, _ in rows) == sum(length for _, length in rows)
        assert store.total_bytes <= 0.002 * 2**20
        orphans = "SELECT COUNT(*) FROM items WHERE entry NOT IN (SELECT id FROM entries)"
        assert store._database.execute(orphans).fetchone() == (0,)
    store.close()


def test_an_owner_who_stores_without_end_pushes_out_nothing_but_its_own() -> None:
    store = ResponseStore(entries=20, clock=Clock())
    bob, alice = store.for_owner("bob"), store.for_owner("alice")
    for number in range(5):
        save(bob, f"b{number}")
    for number in range(1030):
        alice.save_conversation(StoredConversation(id=f"conv_{number}", created_at=1))
    assert all(knows(bob, f"b{number}") for number in range(5))
    assert store.total_entries == 20
    assert alice.conversation("conv_1029") == []


def test_bytes_are_shared_by_owner_too() -> None:
    store = ResponseStore(megabytes=0.02, clock=Clock())
    bob, alice = store.for_owner("bob"), store.for_owner("alice")
    save(bob, "b", padding=5000)
    for number in range(50):
        save(alice, f"a{number}", padding=2000)
    assert knows(bob, "b")
    assert knows(alice, "a49")


def test_a_file_of_the_first_version_keeps_named_owners_and_locks_places(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    old = ResponseStore(str(path))
    for owner in ("", "alice", "key-1"):
        save(old.for_owner(owner), f"of {owner}")
    old.close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 1")
    store = ResponseStore(str(path))
    assert "1 stored responses of API keys without a name" in caplog.text
    assert knows(store.for_owner(None), "of ")
    assert knows(store.for_owner("name:alice"), "of alice")
    assert store.for_owner("name:alice").item("msg_of alice_in")["content"] == "of alice"
    for owner in ("key-1", "name:key-1", "key:1", "alice"):
        assert not knows(store.for_owner(owner), "of key-1")
    assert store.total_entries == 3
    store.close()
    again = ResponseStore(str(path))
    assert knows(again.for_owner("name:alice"), "of alice")
    again.close()


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
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    history.delete_conversation("large")
    assert store._database.execute("PRAGMA page_count").fetchone()[0] < pages // 100
