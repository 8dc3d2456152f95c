"""Adds the next command to type to an error, so that no verb ends without one."""

import re
from typing import Final

from pippin.core.errors import ErrorKind

COMMAND: Final = re.compile(r"\bpippin (?:--help|[a-z]+)|`?\b(?:pip|uv|npm|hf|chmod) [a-z0-9+]")
"""A command in a sentence, of Pippin or another program."""

AFTER: Final[dict[ErrorKind, str]] = {
    "model_not_found": "`pippin list` shows what is here, `pippin search WORDS` what the hub has.",
    "load_failed": "`pippin list` shows what is here, `pippin doctor` checks this machine.",
    "authentication": "Give a key with --api-key or in PIPPIN_API_KEY; see `pippin {verb} --help`.",
}
"""The next command after some kinds of error; for the others it is the verb's help."""


def with_next_command(message: str, verb: str, kind: ErrorKind = "invalid_request") -> str:
    """The message of an error, with a command appended if it names none."""
    if COMMAND.search(message):
        return message
    ended = message if message.endswith((".", "!", "?")) else f"{message}."
    return f"{ended} {AFTER.get(kind, 'See `pippin {verb} --help`.').format(verb=verb)}"
