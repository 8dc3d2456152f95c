"""An interactive conversation: runs the user's commands, and sends other input to the model."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

import msgspec
from msgspec import Struct

from pippin.cli.chat.attachments import Content, missing_files, read_prompt
from pippin.cli.chat.client import Ended, Part, Piece, answer
from pippin.cli.chat.entry import read_entry, unseen_keys
from pippin.cli.chat.server import Reached, model_on
from pippin.cli.terminal import clean, remark, say
from pippin.config.errors import ConfigError, nearest
from pippin.core.decoding import from_json
from pippin.core.errors import ServerError


class Turn(TypedDict):
    role: Literal["user", "assistant"]
    content: Content


class Conversation(Struct):
    """A system prompt, and the turns after it, which alternate between user and assistant; the user begins."""

    model: str
    messages: list[Turn]
    system: str | None = None

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

    def prompt(self) -> list[Mapping[str, object]]:
        """All messages, as sent to the server."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @classmethod
    def load(cls, path: Path) -> "Conversation":
        """Read a file that `save` wrote. Raises `ConfigError` for any other file."""
        try:
            return from_json(path.read_bytes(), cls)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}. `/save` writes such files.") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ConfigError(f"{path} is not a conversation. `/save` writes such files.") from None


DIM, PLAIN = "\x1b[2m", "\x1b[0m"

HELP: Final = {
    "help": ("", "show this"),
    "model": ("[NAME]", "show the models, or talk to another one; the conversation goes on"),
    "system": ("[TEXT]", "show the system prompt, or set it; `/system -` takes it away"),
    "save": ("NAME", "keep the conversation: a name, or the path of a .json file"),
    "load": ("[NAME]", "go on with a conversation that was kept; without a name, show them"),
    "new": ("", "begin anew, with the same model and system prompt"),
    "undo": ("", "forget the last question and its answer"),
    "retry": ("", "ask the last question again"),
    "think": (
        "[on|off|low|medium|high|show|hide]",
        "let the model think or not, how much, and whether it is shown",
    ),
    "set": (
        "[NAME VALUE]",
        "set temperature, max_tokens, seed, top_p, ... of the answers; `format json`; without VALUE, as before",
    ),
    "show": ("", "show the model, the system prompt and what is set"),
    "stats": ("[on|off]", "what the last answer took; `on` says it after each"),
    "bye": ("", "leave; so does ctrl-D"),
}
HELP_AT: Final = 20  # the column where what a command does begins
OTHER_NAMES: Final = {"?": "help", "exit": "bye", "quit": "bye", "clear": "new"}


def read_command(line: str) -> tuple[str, str] | None:
    """The name of the command in a line, and what stands behind it; None if the line is for the model, such as
    `/etc/hosts is ...`.

    Raises `ConfigError` for an unknown command.
    """
    word, _, rest = line.removeprefix("/").partition(" ")
    word = word.strip().lower()
    if not line.startswith("/") or "/" in word or not word:
        return None
    name = OTHER_NAMES.get(word, word)
    if name in HELP:
        return name, rest.strip()
    close = nearest(f"/{word}", [f"/{each}" for each in (*HELP, *OTHER_NAMES)])
    raise ConfigError(f"There is no command /{word}.{close} /help shows them.")


def help_text() -> str:
    uses = {f"/{name} {form}".strip(): does for name, (form, does) in HELP.items()}
    lines = [
        f"{use:<{HELP_AT}}{does}" if len(use) < HELP_AT else f"{use}\n{'':<{HELP_AT}}{does}"
        for use, does in uses.items()
    ]
    return "\n".join(
        [
            *lines,
            "",
            '"""                 begins and ends a text of several lines; alt-enter begins a new line',
            "@PATH               attaches a file; a picture's, recording's or clip's path does without the @",
            "ctrl-C              stops the answer; what came stays",
        ]
    )


EFFORTS: Final = ("low", "medium", "high")
SETTINGS: Final = (
    *("temperature", "max_tokens", "seed", "top_p", "top_k", "min_p", "stop"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
OLLAMAS: Final = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
"""Ollama's names of settings."""


@dataclass(frozen=True)
class Wishes:
    """The user's settings for requests and for showing answers."""

    fields: dict[str, Any] = field(default_factory=dict)  # request fields: sampling, schema
    think: bool | None = None
    effort: str | None = None
    show_reasoning: bool = True
    show_stats: bool = False
    plain: bool = False

    def body(self, model: str, messages: list[Mapping[str, object]]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "messages": messages, **self.fields}
        if self.think is not None:
            body["enable_thinking"] = self.think
        if self.effort is not None:
            body["reasoning_effort"] = self.effort
        return body


class Session:
    """One conversation on one server. `kept` is the folder of saved conversations."""

    def __init__(self, reached: Reached, conversation: Conversation, wishes: Wishes, kept: Path) -> None:
        self.conversation = conversation
        self.wishes = wishes
        self._reached = reached
        self._kept = kept
        self._last: Ended | None = None

    def talk(self, read: Callable[[str], str]) -> None:
        """Read and handle input until the user leaves. An error is printed, and the conversation goes on."""
        while True:
            try:
                entry = read_entry(read)
            except EOFError:
                return
            except KeyboardInterrupt:
                remark("ctrl-D or /bye leaves.", sys.stderr)
                continue
            if not entry:
                continue
            try:
                if not self._do(entry):
                    return
            except (ConfigError, ServerError) as error:
                remark(str(error), sys.stderr)

    def ask(self, text: str, behind: str = "") -> None:
        """Ask and show the answer. If it raises `ServerError`, the question is removed, so that it can be rephrased.

        Files that `text` names are attached; names in `behind`, which is appended to it, attach nothing.
        """
        content, attached = read_prompt(text, behind)
        for path in missing_files(text):
            remark(f"(@{path} is no file here, and is sent as it stands)", sys.stderr)
        if attached and not self.wishes.plain:
            remark(f"with {', '.join(path.name for path in attached)}", sys.stderr)
        self.conversation.ask(content)
        try:
            self._answer()
        except ServerError:
            self.conversation.undo()
            raise

    def _do(self, entry: str) -> bool:
        """Handle an entry. Returns False if the user leaves."""
        match read_command(entry):
            case None:
                self.ask(entry)
            case "bye", _:
                return False
            case "help", _:
                remark(help_text(), behind=HELP_AT)
            case "model", name:
                self._model(name)
            case "system", text:
                if text:
                    self.conversation.system = None if text == "-" else text
                remark(self.conversation.system or "There is no system prompt: /system TEXT sets one.")
            case "save", "":
                raise ConfigError("/save needs a name: /save trip")
            case "save", name:
                self.conversation.save(self._file(name))
                remark(f"Kept: {self._file(name)}. Go on with it: /load {name}")
            case "load", name:
                self.open(name)
            case "new", _:
                self.conversation.messages.clear()
                remark("A new conversation.")
            case "undo", _:
                done = self.conversation.undo()
                remark("The last question is forgotten." if done else "Nothing was asked yet.")
            case "retry", _ if self.conversation.take_back_answer():
                self._answer()
            case "retry", _:
                remark("Nothing was asked yet.")
            case "think", word:
                self._think(word)
            case "set", given:
                self._set(given)
            case "show", _:
                self._show()
            case "stats", word:
                self._show_stats(word)
            case name, _:
                raise AssertionError(f"/{name} is in the help and does nothing")
        return True

    def _answer(self) -> None:
        body = self.wishes.body(self.conversation.model, self.conversation.prompt())
        said, stopped = "", False
        with (
            unseen_keys(),
            closing(Display(plain=self.wishes.plain, show_reasoning=self.wishes.show_reasoning)) as display,
        ):
            try:
                for part in answer(self._reached.client, body):
                    # Before it is shown: ctrl-C may come between the two.
                    match part:
                        case Piece("text", text):
                            said += text
                        case Ended():
                            self._last = part
                    display.show(part)
            except KeyboardInterrupt:
                if self.wishes.plain:
                    raise
                stopped = True
        self.conversation.answered(said)
        sys.stdout.write("" if said.endswith("\n") else "\n")
        sys.stdout.flush()
        if stopped:
            remark("(stopped; /retry asks again, /undo takes the question back)", sys.stderr)
        elif self._last is not None and self._last.reason == "length":
            remark("(cut at its limit of tokens: --max-tokens raises it, or say `go on`)", sys.stderr)
        if self.wishes.show_stats:
            remark(self._stats(), sys.stderr)

    def _model(self, name: str) -> None:
        if name:
            self._reached = model_on(self._reached.client, name)
            self.conversation.model = self._reached.model
            remark(f"Talking to {self._reached.model}.")
            return
        for model in self._reached.client.request("GET", "/v1/models")["data"]:
            mark = "*" if model["id"] == self.conversation.model else " "
            say(f"{mark} {model['id']}{' (loaded)' if model.get('loaded') else ''}")

    def open(self, name: str) -> None:
        """Continue a saved conversation; without a name, list the saved ones."""
        if not name:
            names = sorted(path.stem for path in self._kept.glob("*.json"))
            say("\n".join(names) if names else "None is kept yet: /save NAME keeps this one.")
            return
        if not self._file(name).is_file():
            raise ConfigError(
                f"No conversation is kept as {name}. /load without a name shows those that are."
            )
        loaded = Conversation.load(self._file(name))
        loaded.model = self.conversation.model
        self.conversation = loaded
        turns = sum(message["role"] == "user" for message in loaded.messages)
        count = "1 question and its answer" if turns == 1 else f"{turns} questions and their answers"
        remark(f"{count} are here again.")
        for message in loaded.messages:
            said = message["content"]
            if not isinstance(said, str):
                said = " ".join(part.get("text", f"({part.get('type')})") for part in said)
            say(f"> {said}" if message["role"] == "user" else f"{said}\n")

    def _file(self, name: str) -> Path:
        path = Path(name).expanduser()
        return path if path.suffix == ".json" or "/" in name else self._kept / f"{name}.json"

    def _think(self, word: str) -> None:
        changes: dict[str, dict[str, Any]] = {
            "on": {"think": True, "effort": None},
            "off": {"think": False, "effort": None},
            "show": {"show_reasoning": True},
            "hide": {"show_reasoning": False},
            **{effort: {"think": None, "effort": effort} for effort in EFFORTS},
        }
        if word:
            if word not in changes:
                raise ConfigError(f"/think takes {', '.join(changes)}.")
            self.wishes = replace(self.wishes, **changes[word])
        thinks = {None: "as the model does by itself", True: "on", False: "off"}[self.wishes.think]
        shown = "shown" if self.wishes.show_reasoning else "hidden"
        remark(f"Thinking: {self.wishes.effort or thinks}, {shown}.")

    def _set(self, given: str) -> None:
        """Set a field of the requests, in Pippin's words or in Ollama's."""
        name, _, value = given.removeprefix("parameter ").strip().partition(" ")
        name, value = OLLAMAS.get(name, name), value.strip().strip('"')
        fields = dict(self.wishes.fields)
        match name:
            case "":
                pass
            case "system":
                self.conversation.system = None if value in ("", "-") else value
            case "think" | "nothink":
                self._think("on" if name == "think" else "off")
                return
            case "verbose" | "quiet":
                self._show_stats("on" if name == "verbose" else "off")
                return
            case "format" if value not in ("json", ""):
                raise ConfigError(
                    f"/set format takes json, and not {value}; `run --json-schema` takes a schema."
                )
            case "format" | "noformat":
                fields.pop("response_format", None)
                if name == "format" and value:
                    fields["response_format"] = {"type": "json_object"}
            case "num_ctx":
                raise ConfigError(
                    "The window belongs to the server: pippin serve MODEL --context-length COUNT."
                )
            case _ if name in SETTINGS:
                fields.pop(name, None)
                if value:
                    fields[name] = value.split() if name == "stop" else _number(name, value)
            case _:
                raise ConfigError(
                    f"/set knows no {name}.{nearest(name, SETTINGS)} It takes {', '.join(SETTINGS)}."
                )
        self.wishes = replace(self.wishes, fields=fields)
        self._show()

    def _show(self) -> None:
        remark(self.conversation.model)
        remark(f"system: {self.conversation.system or 'none'}")
        for name, value in self.wishes.fields.items():
            remark(f"{name} {json.dumps(value) if isinstance(value, dict | list) else value}")

    def _show_stats(self, word: str) -> None:
        if word in ("on", "off"):
            self.wishes = replace(self.wishes, show_stats=word == "on")
        remark(self._stats())

    def _stats(self) -> str:
        last = self._last
        if last is None:
            return "Nothing was answered yet."
        window = self._reached.facts.get("context_window")
        used = last.prompt_tokens + last.completion_tokens
        of_window = f"; {used} of {window} tokens of the window" if window else ""
        return (
            f"{last.completion_tokens} tokens at {last.rate:.1f} a second; prompt of {last.prompt_tokens}, "
            f"{last.cached_tokens} of them cached{of_window}"
        )


def _number(name: str, text: str) -> float:
    """Raises `ConfigError` if the text is no number."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise ConfigError(f"/set {name} takes a number, as in `/set {name} 1`.") from None


class Display:
    """Writes the parts of an answer as they arrive: to a terminal with its reasoning dimmed, or to a pipe without it
    (`plain`).

    Nothing is drawn anew or moved, so that code and mathematics can be copied as the model wrote them.
    """

    def __init__(self, *, plain: bool, show_reasoning: bool) -> None:
        self._plain = plain
        self._show_reasoning = show_reasoning
        self._thinking = False

    def show(self, part: Part) -> None:
        match part:
            case Piece("reasoning", text) if not self._plain:
                shown = clean(text) if self._show_reasoning else "" if self._thinking else "thinking ..."
                print(shown if self._thinking else DIM + shown, end="", flush=True)
                self._thinking = True
            case Piece("text", text):
                self.close()
                print(text if self._plain else clean(text), end="", flush=True)
            case Piece("call", name):
                self.close()
                say(f"\n[the model calls {name}]", sys.stderr)

    def close(self) -> None:
        """End a thought that is open: what follows it is not dimmed."""
        if self._thinking:
            print(PLAIN, end="\n\n", flush=True)
        self._thinking = False
