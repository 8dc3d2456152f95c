"""docs/api.md tells of every event, and events are those of the vendor's own types."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
from openai.types.realtime import RealtimeClientEvent, RealtimeServerEvent

from pippin.api.sockets.realtime import events

PAGE = (Path(__file__).parents[4] / "docs" / "api.md").read_text()


def named(event: str) -> bool:
    """Whether an event is in the page, by itself or as the `.done` or the family of one that is."""
    stem = event.removesuffix(".done").removesuffix(".completed").removesuffix(".failed")
    return f"`{event}`" in PAGE or f"`{stem}.delta`" in PAGE or f"`{stem}.added`" in PAGE


def test_every_event_is_documented() -> None:
    sent = [
        kind.__struct_config__.tag
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.ServerEvent)
    ]
    told = [str(event) for event in sent if "." in str(event)]
    assert len(told) > 20
    assert [event for event in (*events.CONTRACTS, *told) if not named(event)] == []


def vendors(union: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a union of the vendor's types, and their fields."""
    for kind in get_args(union):
        if isinstance(kind, type) and (fields := getattr(kind, "model_fields", {})).get("type"):
            yield get_args(fields["type"].annotation)[0], fields
        elif not isinstance(kind, type):
            yield from vendors(kind)


def test_every_event_of_the_vendors_clients_and_each_field_of_it_is_known() -> None:
    sent = dict(vendors(RealtimeClientEvent))
    assert sent.keys() - events.CONTRACTS.keys() == events.REFUSED.keys()
    for name in sent.keys() & events.CONTRACTS.keys():
        contract = events.CONTRACTS[name]
        known = {*contract.names, *contract.accepted, *contract.refused, "type", "event_id"}
        assert set(sent[name]) <= known, name


def test_events_have_what_the_vendors_clients_need() -> None:
    awaited = dict(vendors(RealtimeServerEvent))
    for kind in vars(events).values():
        if isinstance(kind, type) and issubclass(kind, events.ServerEvent):
            fields = awaited.get(str(kind.__struct_config__.tag), {})
            needed = {name for name, field in fields.items() if field.is_required()} - {"type", "event_id"}
            assert needed <= {field.encode_name for field in msgspec.structs.fields(kind)}, kind
