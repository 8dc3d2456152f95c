"""The messages of a conversation, in the form of Chat Completions; saved in JSON files."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pippin.config.errors import ConfigError

Message = dict[str, Any]
Content = str | list[dict[str, Any]]


@dataclass
class Conversation:
    """A system prompt, and the turns after it. `messages` alternate between user and assistant; the user begins."""

    model: str
    system: str | None = None
    messages: list[Message] = field(default_factory=list)

    def ask(self, content: Content) -> None:
        self.messages.append({"role": "user", "content": content})

    def answered(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def undo(self) -> bool:
        """Remove the last question and its answer. Returns False if there is none."""
        while self.messages:
            if self.messages.pop()["role"] == "user":
                return True
        return False

    def take_back_answer(self) -> bool:
        """Remove the last answer, so that it can be generated again. Returns False if there is no question."""
        while self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        return bool(self.messages)

    def prompt(self) -> list[Message]:
        """All messages, as sent to the server."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages]

    def save(self, path: Path) -> None:
        saved = {"model": self.model, "system": self.system, "messages": self.messages}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(saved, indent=2, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def load(cls, path: Path) -> "Conversation":
        """Read a file that `save` wrote. Raises `ConfigError` for any other file."""
        try:
            saved = json.loads(path.read_text("utf-8"))
            messages = [{"role": each["role"], "content": each["content"]} for each in saved["messages"]]
            model, system = saved["model"], saved.get("system")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}. `/save` writes such files.") from None
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{path} is not a conversation. `/save` writes such files.") from None
        if not isinstance(model, str) or any(each["role"] not in ("user", "assistant") for each in messages):
            raise ConfigError(f"{path} is not a conversation. `/save` writes such files.")
        return cls(model, system if isinstance(system, str) else None, messages)
