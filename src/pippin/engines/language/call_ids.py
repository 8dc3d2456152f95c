"""The ids of earlier calls as a family's template wants them."""

import hashlib
import re
from collections.abc import Sequence
from typing import Literal

from pippin.core.conversation import Message, ToolCall

Style = Literal["any", "nine", "function"]
_FUNCTION = re.compile(r"functions\.[^\s:]+:[0-9]+")


class CallIds:
    """Of one conversation: a call and its result keep one id, whatever the client calls it."""

    def __init__(self, messages: Sequence[Message], style: Style) -> None:
        self._style = style
        calls = [part for message in messages for part in message.parts if isinstance(part, ToolCall)]
        self._counted = {call.id: f"functions.{call.name}:{count}" for count, call in enumerate(calls)}

    def written(self, id: str) -> str:
        match self._style:
            case "any":
                return id
            case "nine":
                fits = len(id) == 9 and id.isalnum() and id.isascii()
                return id if fits else hashlib.sha256(id.encode()).hexdigest()[:9]
            case "function":
                return id if _FUNCTION.fullmatch(id) else self._counted.get(id, id)
