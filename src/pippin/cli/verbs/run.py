"""`pippin run`: a chat in the terminal, or one answer for a script."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pippin.cli.arguments import KEEP, SERVER, argument, of_catalog, switch, verb
from pippin.cli.terminal import remark
from pippin.config import environment
from pippin.config.errors import ConfigError
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from pippin.cli.chat.server import Reached
    from pippin.cli.chat.session import Session, Wishes

EPILOG: Final = (
    "With a prompt, or where the input is no terminal, it answers once and ends; what is piped in stands behind "
    "the prompt. Paths of pictures, recordings and clips in a prompt are attached, and any file as @PATH."
)


@verb(
    "run",
    argument(
        "words",
        nargs="*",
        metavar="[MODEL] [PROMPT]",
        help="a repository, a folder, or a model that is here, else the one served; what to ask, else a conversation",
    ),
    argument("-m", "--model", help="the model, where its name could begin the prompt"),
    *SERVER,
    KEEP,
    argument("--system", metavar="TEXT", help="the system prompt"),
    argument("--load", metavar="NAME", help="go on with a conversation that /save kept"),
    argument("--json-schema", metavar="SCHEMA", help="answer in JSON of this schema: a file, or the JSON"),
    argument("--think", choices=("on", "off", "low", "medium", "high"), help="how much to think"),
    switch("--hide-thinking", help="show the answer alone"),
    argument("--max-tokens", type=int, metavar="COUNT", help="most tokens of an answer"),
    argument("--temperature", type=float, metavar="T", help="0 takes the likeliest token each time"),
    argument("--seed", type=int, help="for the same answer again; on a GPU ties may differ"),
    switch("--plain", help="the answer alone, as into a pipe"),
    switch("--stats", help="say what each answer took"),
    of_catalog,
    usage="pippin run [MODEL] [PROMPT] [options]",
    epilog=EPILOG,
)
def run(parsed: Namespace) -> int:
    """The first word is the model if it names one; otherwise it begins the prompt."""
    from pippin.cli.chat.attachments import named_files
    from pippin.cli.chat.entry import heed_interrupts, line_reader
    from pippin.cli.chat.server import names_a_model, reached
    from pippin.cli.chat.session import HELP

    wishes = _wishes(parsed)
    piped = None if sys.stdin.isatty() else sys.stdin.read()
    model, words = parsed.model, list(parsed.words)
    if model is None and words and not any(named_files(words[0])) and names_a_model(parsed, words[0]):
        model = words.pop(0)
    prompt = " ".join(words)
    behind = piped if piped and piped.strip() else ""
    if piped is not None and not (prompt or behind):
        raise ConfigError(
            'There is nothing to ask: the input is empty. Give a prompt, as in `pippin run "Say hello."`.'
        )
    with reached(parsed, model) as server:
        session = _session(parsed, server, wishes)
        if prompt or behind:
            session.ask(prompt, behind)
        else:
            heed_interrupts()
            remark(
                f"{session.conversation.model}: ask away. /help shows what else can be typed, ctrl-D leaves."
            )
            session.talk(line_reader(environment.home() / "history", HELP))
    return 0


def _wishes(parsed: Namespace) -> "Wishes":
    from pippin.cli.chat.session import Wishes

    fields: dict[str, Any] = {
        name: getattr(parsed, name)
        for name in ("max_tokens", "temperature", "seed")
        if getattr(parsed, name) is not None
    }
    if parsed.json_schema is not None:
        schema = {"name": "answer", "schema": read_schema(parsed.json_schema), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    think: bool | None = {"on": True, "off": False}.get(parsed.think)
    return Wishes(
        fields=fields,
        think=think,
        effort=parsed.think if think is None else None,
        show_reasoning=not parsed.hide_thinking,
        show_stats=parsed.stats,
        plain=parsed.plain or not sys.stdout.isatty() or parsed.json_schema is not None,
    )


def read_schema(text: str) -> Any:
    """A JSON schema from a file or from the command line."""
    source = text
    if not text.lstrip().startswith("{"):
        try:
            source = Path(text).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(f"--json-schema {text}: {why}. Give a file, or the JSON itself.") from None
    try:
        return json.loads(source)
    except ValueError as error:
        raise ConfigError(f"--json-schema: this is no JSON ({error}).") from None


def _session(parsed: Namespace, reached: "Reached", wishes: "Wishes") -> "Session":
    from pippin.cli.chat.session import Conversation, Session

    kind = reached.facts.get("kind")
    if kind not in ("language", "scripted"):
        raise ServerError(
            "invalid_request",
            f"{reached.model} is a model for {kind}, which doesn't chat. `pippin list` shows the language models.",
        )
    conversation = Conversation(reached.model, [], parsed.system)
    session = Session(reached, conversation, wishes, environment.home() / "conversations")
    if parsed.load:
        session.open(parsed.load)
        if parsed.system:
            session.conversation.system = parsed.system
    return session
