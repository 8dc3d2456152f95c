"""The call that is being read: it is sent when it is complete, and becomes text if it turns out to be none.

Text is a call only if it is a complete call of an offered tool, with arguments that are one JSON object. So a call is
held back until its end. Only a very long one is begun earlier: clients give up streams that stay silent for minutes.
"""

from collections.abc import Callable
from typing import Any, Final

from pippin.core.conversation import Tool
from pippin.output.stream import Malformed, Put, Source, Writer

HELD_LIMIT: Final = 4096
"""Most characters of arguments that are held back until the call is complete."""


class Calls:
    """The context of a call reader: the source of text, the offered tools, and the call being read.

    A reader calls `start`, then `arguments` with pieces of JSON text, then `end`. What it took since the last complete
    call becomes text if it raises `Malformed`.
    """

    def __init__(
        self,
        source: Source,
        writer: Writer,
        tools: tuple[Tool, ...],
        *,
        put_text: Put,
        object_text: Callable[[str], str | None],
        counts: Callable[[str], bool],
    ) -> None:
        """`put_text` writes what turns out to be no call; `object_text` makes one JSON object of arguments, or None;
        `counts` tells whether the marker that comes next is one, not text that spells it."""
        self.source = source
        self.tools = tools
        self.counts = counts
        self._writer, self._put_text, self._object_text = writer, put_text, object_text
        self._opener = ""  # markup before the call, already taken
        self._name = ""
        self._id: str | None = None
        self._offered = False  # the tool of the call
        self._held_to_end = False  # nothing of the call is sent before its end
        self._pieces: list[str] = []
        self._size = 0
        self._arguments_at = 0  # position of the source where the arguments began
        self._sent = False  # a long call was begun before its end
        self._refused = False  # the last call of the block became text

    def schema(self, name: str) -> dict[str, Any] | None:
        """The JSON schema of a tool's parameters; None if the tool was not offered."""
        for tool in self.tools:
            if tool.name == name:
                return tool.parameters or {}
        return None

    def open(self, opener: str) -> None:
        """Begin a block of calls after its opener, which is already taken."""
        self._opener, self._refused, self._sent = opener, False, False
        self.source.remember()

    def start(self, name: str, id: str | None = None, *, listed: bool = False) -> None:
        """Begin a call. Raises `Malformed` if the tool was not offered, unless the call is `listed`: others may follow,
        so it is read to its end, and then becomes text."""
        self._offered = self.schema(name) is not None
        if not (self._offered or listed):
            raise Malformed
        self._name, self._id = name, id
        self._pieces, self._size, self._sent = [], 0, False
        self._held_to_end = not self._offered
        self._arguments_at = self.source.position

    def arguments(self, text: str) -> None:
        """Add a piece of the arguments' JSON text."""
        if self._sent:
            self._writer.grow_call(text)
            return
        self._pieces.append(text)
        self._size += len(text)
        if self._size > HELD_LIMIT and not self._held_to_end:
            written = "".join(self._pieces)
            self._held_to_end = not written.lstrip().startswith("{")
            if not self._held_to_end:
                self._send(written)

    def end(self) -> None:
        """End the call: send it, or make text of it if it is not a call of an offered tool with an object."""
        if not self._sent:
            written = "".join(self._pieces)
            arguments = self._object_text(written)
            if arguments is None or not self._offered:
                self._refuse()
                return
            self._send(arguments)
        self._writer.close_call()
        self._sent = self._refused = False
        self._opener = ""
        self.source.remember()

    def close(self) -> None:
        """End the block. What follows a call that became text, such as an end marker, is text as well."""
        rest = self.source.recall()
        if self._refused:
            self._put_text(rest)

    def give_up(self) -> str:
        """End a malformed block. Returns the opener that becomes text; the rest can be recalled from the source."""
        if self._sent:
            self._writer.close_call(complete=False)
            self._sent = False
        return self._opener

    def _send(self, arguments: str) -> None:
        self._writer.open_call(self._name, self._id, self._arguments_at)
        self._writer.grow_call(arguments)
        self._sent = True

    def _refuse(self) -> None:
        self._put_text(self._opener + self.source.recall())
        self._opener, self._refused = "", True
        self.source.remember()
