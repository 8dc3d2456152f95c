"""Examples of the replaced servers' documents, run as they are typed: what starts a server, bash, and Python."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from pippin.cli.arguments import option_parser
from pippin.config.load import load
from pippin.config.settings import Settings
from tests.config.profiles import under
from tests.running_server import running_server

SECONDS = 120
READY = "is ready after"
ADDRESS = re.compile(r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0):\d+")

COMMANDS: Final[tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...]] = (
    (("vllm-mlx", "serve"), "serve", ("--compat", "vllm-mlx")),
    (("mlx_vlm.server",), "serve", ("--compat", "mlx-vlm")),
    (("mlx_vlm", "server"), "serve", ("--compat", "mlx-vlm")),
    (("python", "-m", "mlx_vlm.server"), "serve", ("--compat", "mlx-vlm")),
    (("python", "-m", "mlx_vlm", "server"), "serve", ("--compat", "mlx-vlm")),
    (("mlx-openai-server", "launch"), "launch", ()),
    (("./run.sh",), "serve", ("--compat", "mlx-server")),
    (("python", "-m", "mlx_server.main"), "serve", ("--compat", "mlx-server")),
)
"""How the replaced servers are started, and what docs/migrating.md says to type instead."""


@dataclass(frozen=True)
class CommandLine:
    """A typed command of a replaced server in Pippin's words. The variables in front of it are set apart."""

    verb: str
    words: tuple[str, ...]
    variables: Mapping[str, str]

    @classmethod
    def read(cls, typed: str) -> "CommandLine":
        words = shlex.split(typed.replace("\\\n", " "))
        variables: dict[str, str] = {}
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        for start, verb, profile in COMMANDS:
            if tuple(words[: len(start)]) == start:
                return cls(verb, (*profile, *words[len(start) :]), variables)
        raise AssertionError(f"no document starts a server by `{typed}`")


def settings_of(typed: str) -> Settings:
    """What Pippin reads from a command line of a replaced server, without starting anything."""
    command = CommandLine.read(typed)
    given = option_parser("pippin serve", "").parse(command.words).given
    profile: Any = "mlx-openai-server" if command.verb == "launch" else None
    return load(under(profile, *given), command.variables)


def warnings_of(typed: str) -> list[str]:
    """What an operator is warned of who types this."""
    return [note.text for note in settings_of(typed).notes if note.severity == "warning"]


@dataclass
class Reader:
    """Somebody who types the examples of a document one after the other, in a folder of their own.

    `places` says what stands for the places that an example names and that are not here (`/path/to`,
    `https://example.com`); of the rest, only the server's address is another. What Python examples name is kept for
    those that follow, as on the page.
    """

    address: str
    folder: Path
    places: Mapping[str, str] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    clients: dict[int, Any] = field(default_factory=dict)  # that the examples made, and closed none of

    def bash(self, example: str) -> str:
        """What the example prints. The example fails where its last command does."""
        environment = {"PATH": os.environ["PATH"], "no_proxy": "*", "HOME": str(self.folder)}
        done = subprocess.run(
            ["bash", "-c", self._here(example)],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, example: str) -> Any:
        return json.loads(self.bash(example))

    def events(self, example: str) -> list[Any]:
        """The data of a printed stream of server-sent events, without the `[DONE]` at its end."""
        lines = [
            line.removeprefix("data: ") for line in self.bash(example).splitlines() if line[:5] == "data:"
        ]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def python(self, example: str) -> str:
        """What the example prints. An exception of the example is the test's."""
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed), contextlib.chdir(self.folder):
                exec(compile(self._here(example), "<example>", "exec"), self.names)
        finally:
            made = [each for each in self.names.values() if type(each).__name__ in ("OpenAI", "Anthropic")]
            self.clients |= {id(client): client for client in made}
        return printed.getvalue()

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def _here(self, example: str) -> str:
        example = ADDRESS.sub(self.address, example)
        for place, stand_in in self.places.items():
            example = example.replace(place, stand_in)
        return example


@contextlib.contextmanager
def started(
    home: Path, typed: str, *more: str, models: Mapping[str, str] | None = None, ready: str = READY
) -> Iterator[str]:
    """The address of a server that is started by the command line of a document, on a port of its own.

    `more` are words that this machine needs (loopback, no downloads); `models` gives the model that stands for one of
    the line's where it can't lie in the cache under its name. Sampling has a seed, by which random models say something
    in every example.
    """
    command = CommandLine.read(typed)
    words = [(models or {}).get(word, word) for word in _without_port(command.words)]
    variables = {**command.variables, "PIPPIN_HOME": str(home / ".pippin")}
    with running_server(
        home,
        *words,
        *more,
        "--no-allow-downloads",
        "--seed",
        "7",
        verb=command.verb,
        variables=variables,
        ready=ready,
    ) as address:
        yield address


@contextlib.contextmanager
def reading(
    home: Path,
    typed: str,
    *more: str,
    models: Mapping[str, str] | None = None,
    places: Mapping[str, str] | None = None,
    web: str | None = None,
    named: str = "",
    ready: str = READY,
) -> Iterator[Reader]:
    """Somebody who has started the server of a document by `typed`, and reads on in the folder `home`.

    With `web`, the folder's files are at that address too, and the server may read both. `named` is Python that the
    document has shown before, such as its client.
    """
    with contextlib.ExitStack() as stack:
        stand_ins = dict(places or {})
        if web is not None:
            stand_ins[web] = stack.enter_context(web_of(home))
            more = (*more, "--media-host", "127.0.0.1", "--media-path", str(home))
        address = stack.enter_context(started(home, typed, *more, models=models, ready=ready))
        reader = Reader(address, home, stand_ins)
        stack.callback(reader.close)
        reader.python(named)
        yield reader


def _without_port(words: tuple[str, ...]) -> list[str]:
    kept = list(words)
    if "--port" in kept:
        place = kept.index("--port")
        del kept[place : place + 2]
    return kept


@contextlib.contextmanager
def web_of(folder: Path) -> Iterator[str]:
    """A web server with the files of a folder: what stands for `https://example.com`."""
    handler = partial(_Quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *words: object) -> None:
        pass
