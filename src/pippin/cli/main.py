"""The command `pippin`: finds the verb and runs it. A verb's module is imported only when it is called."""

import errno
import gc
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pippin.core.errors import ErrorKind

USAGE_ERROR: Final = 2
INTERRUPTED: Final = 130


VERBS: Final[dict[str, tuple[str, str]]] = {
    "serve": (".begin.serve", "Serve models behind the OpenAI and Anthropic APIs"),
    "run": ("run.run", "Chat with a model in the terminal, by the running server or one of its own"),
    "decide": ("decide.decide", "Ask a model of the running server how likely answers about a text are"),
    "agent": (
        "agent.agent",
        "Start a coding agent that uses a model of the running server, or of one of its own",
    ),
    "fit": (
        "fitting.fit",
        "Tell what memory a model takes, and the longest context that fits, without a download",
    ),
    "verify": ("verify.verify", "Check that a model is served with its publisher's quality"),
    "bench": (
        "bench.bench",
        "Measure the running server, or one of its own, at each of the lengths and clients",
    ),
    "recommend": ("fitting.recommend", "Name models that suit this machine's memory and device"),
    "search": ("models.search", "Find MLX models on the hub, the most downloaded first"),
    "list": ("models.list_models", "List the models on this machine"),
    "show": ("show.show", "Show what is known of a model"),
    "pull": ("models.pull", "Download a model; what was fetched before is not fetched again"),
    "rm": ("models.rm", "Delete a model's files from this machine"),
    "import": ("models.import_model", "Turn a GGUF file into an MLX model in Pippin's own folder"),
    "ps": ("running_server.ps", "List the models in memory of the running server"),
    "load": ("running_server.load", "Load a model into the running server, and wait until it is ready"),
    "unload": ("running_server.unload", "Unload a model from the running server; requests end first"),
    "stop": ("running_server.stop", "Stop the running server; what runs is finished first"),
    "logs": ("running_server.logs", "Show the log of the running server, or of one that failed"),
    "open": ("running_server.open_page", "Open the running server's page in a browser"),
    "config": ("config.config", "Show the configuration and where each value came from"),
    "join": ("machines.join", "Make this machine a part of a cluster that runs replicas"),
    "worker": ("machines.worker", "Run a model for a server on another machine, which starts this"),
    "doctor": ("doctor.doctor", "Check that this machine can run models"),
    "service": (
        "service.service",
        "Run `pippin serve` at login: install, look at or remove the service that does",
    ),
    "completion": ("completion.completion", "Print what makes a shell complete commands, flags and models"),
    "version": ("doctor.version", "Show the version"),
}
"""Where each verb is (its module, and its name there), and its help text."""

ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "launch": ("serve", "--compat", "mlx-openai-server"),
    "ls": ("list",),
    "download": ("pull",),
    "--version": ("version",),
    "-V": ("version",),
}
"""The words that a verb of another program stands for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    # There are few cycles: with rare collections imports take two thirds of the time.
    gc.set_threshold(50_000, 20, 50)
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # also while a verb is imported
        return INTERRUPTED


def _run(words: list[str]) -> int:
    if not words:
        return _guarded(importlib.import_module("pippin.cli.welcome").run, "run", words)
    if words[0] == "help" and len(words) > 1:
        words = [*words[1:], "--help"]
    if words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    name, *implied = ALIASES.get(words[0], words[:1])
    if name not in VERBS:
        from pippin.config.errors import nearest

        near = nearest(words[0], [*VERBS, *ALIASES])
        print(f"pippin: there is no command `{words[0]}`.{near} See `pippin --help`.", file=sys.stderr)
        return USAGE_ERROR
    return _guarded(verb_of(name).run, name, [*implied, *words[1:]])


def verb_of(name: str) -> Any:
    """The verb of that name: a `Verb`, or the `Actions` of one."""
    module, _, one = VERBS[name][0].rpartition(".")
    return getattr(importlib.import_module(f".{module}", "pippin.cli.verbs"), one)


def overview() -> str:
    width = max(map(len, VERBS)) + 2
    lines = "\n".join(f"  {name:<{width}}{text}" for name, (_, text) in VERBS.items())
    return (
        "Pippin serves MLX models behind the OpenAI and Anthropic APIs.\n\n"
        f"usage: pippin COMMAND ...\n\n{lines}\n\n"
        "`pippin COMMAND --help` tells more of one. To begin: pippin run"
    )


def _guarded(run: Callable[[Sequence[str]], int], name: str, arguments: Sequence[str]) -> int:
    """Run a verb and return the exit status. An error that users can fix becomes one line on stderr."""
    try:
        return run(arguments)
    except Exception as error:
        return _told(error, name)


def _told(error: Exception, name: str) -> int:
    """The exit status for an error of a verb, which is told; raised again if users cannot fix it."""
    # `pippin serve` begins before any of these is imported.
    from pippin.cli.terminal import say
    from pippin.config.errors import ConfigError
    from pippin.core.errors import ServerError
    from pippin.core.logs import without_secrets

    match error:
        case ConfigError():
            print(f"pippin: {with_next_command(str(error), name)}", file=sys.stderr)
            return USAGE_ERROR
        case ServerError():
            message = without_secrets(error.report.message)
            say(f"pippin: {with_next_command(message, name, error.report.kind)}", sys.stderr)
        case BrokenPipeError():
            sys.stderr.close()  # nobody reads the output any more: print nothing else
        # Else it is not about a file that the user named: a bug.
        case OSError() if error.filename is not None or error.errno in NAMELESS:
            what = error.filename or NAMELESS[error.errno]
            print(f"pippin: {with_next_command(f'{what}: {error.strerror}.', name)}", file=sys.stderr)
        case _:
            raise error
    return 1


NAMELESS: Final[dict[int | None, str]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS), "A file can't be written"),
    errno.ENOENT: "The folder that this was started in, or one for temporary files, is missing",
}
"""What errors mean that name no file."""

COMMAND: Final = re.compile(r"\bpippin (?:--help|[a-z]+)|`?\b(?:pip|uv|npm|hf|chmod) [a-z0-9+]")
"""A command in a sentence, of Pippin or another program."""

AFTER: Final[dict["ErrorKind", str]] = {
    "model_not_found": "`pippin list` shows what is here, `pippin search WORDS` what the hub has.",
    "load_failed": "`pippin list` shows what is here, `pippin doctor` checks this machine.",
    "authentication": "Give a key with --api-key or in PIPPIN_API_KEY; see `pippin {verb} --help`.",
}
"""The next command after some kinds of error; for the others it is the verb's help."""


def with_next_command(message: str, verb: str, kind: "ErrorKind" = "invalid_request") -> str:
    """The message of an error, with a command appended if it names none."""
    if COMMAND.search(message):
        return message
    ended = message if message.endswith((".", "!", "?")) else f"{message}."
    return f"{ended} {AFTER.get(kind, 'See `pippin {verb} --help`.').format(verb=verb)}"
