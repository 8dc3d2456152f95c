"""About how many bytes an answer will take, so that a large one is drawn beside the event loop."""

from collections.abc import Iterable
from typing import Final

from pippin.core.events import Event, PartDelta, Picture, Segment, SpeechChunk

TOKEN_BYTES: Final = 200  # with its log probability
SEGMENT_BYTES: Final = 1000  # with its words


def of_events(events: Iterable[Event]) -> int:
    size = 0
    for event in events:
        match event:
            case PartDelta(text=text, tokens=tokens):
                size += len(text) + TOKEN_BYTES * len(tokens)
            case Picture(data=data) | SpeechChunk(data=data):
                size += len(data)
            case Segment():
                size += SEGMENT_BYTES
            case _:
                pass
    return size
