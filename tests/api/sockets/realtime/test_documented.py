"""docs/api.md tells of every event."""

from pathlib import Path

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
    told = [
        str(event) for event in sent if "." in str(event) and not str(event).startswith("response.mcp_call")
    ]
    assert len(told) > 25
    assert [event for event in (*events.CONTRACTS, *told) if not named(event)] == []
