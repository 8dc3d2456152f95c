"""Formats that divide the whole answer into messages, each with a header that routes it."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from pippin.output.stream import Malformed, Markers, Reading, Source

_HEADER_LIMIT = 256


class Route(Struct, frozen=True):
    """The destination of a message. The text of a call is its arguments."""

    channel: Literal["text", "reasoning", "call"]
    name: str = ""


class Channels(Struct, frozen=True, kw_only=True):
    """A message is one of `openers`, a header, one of `header_ends`, its text, and one of `ends`.

    The prompt may end inside a header; the generated rest of the header then starts with one of `begins`.
    """

    openers: tuple[str, ...]
    header_ends: tuple[str, ...]
    ends: tuple[str, ...]
    route: Callable[[str], Route]
    begins: tuple[str, ...] = ()
    recipients: bool = False  # the name of any tool on a line of its own counts as one of `begins`
    known: bool = False  # a header that names no offered tool is text: text may contain openers
    further: tuple[str, ...] = ()  # other markers inside a header

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.openers, *self.header_ends, *self.ends, *self.further)

    def read_header(self, source: Source, opener: str) -> Reading[Route]:
        """Read a header after its opener. Malformed if it is too long, or if the stream ends inside it."""
        header = "" if opener in self.openers else opener
        found = next((end for end in self.header_ends if header.endswith(end)), "")
        markers = Markers((*self.openers, *self.header_ends, *self.further))
        while found not in self.header_ends:
            text, found = yield from source.before(markers, _HEADER_LIMIT)
            header += text + " "
            if len(header) > _HEADER_LIMIT:
                raise Malformed
        return self.route(header)
