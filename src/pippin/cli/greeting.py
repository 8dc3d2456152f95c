"""The first output of a server: its address, a request to try, and the progress of loading."""

import asyncio
import json
import logging
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pippin
from pippin.cli.terminal import progress, say, size
from pippin.config.accelerator import accelerator, has_cpu_kernels, memory_budget
from pippin.config.errors import kernels_command
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from pippin.catalog import Catalog
    from pippin.service.service import Service

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.25  # seconds
EXAMPLES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "language": ("/chat/completions", {"messages": [{"role": "user", "content": "Say hello."}]}),
    "embeddings": ("/embeddings", {"input": "hello"}),
    "reranking": ("/rerank", {"query": "A greeting?", "documents": ["hello", "seven"]}),
    "transcription": ("/audio/transcriptions", {}),
    "speech": ("/audio/speech", {"input": "Hello.", "response_format": "wav"}),
    "images": ("/images/generations", {"prompt": "A red fish", "size": "512x512"}),
}
"""Path and fields of an example request for each kind of model."""
DAMAGED: Final = "damaged"
NO_MODEL: Final = "No model is named: requests load them. `pippin list` shows what is here."


def reachable(address: str) -> str:
    """The address as clients on this machine can use it."""
    for host in ("//0.0.0.0:", "//[::]:"):
        address = address.replace(host, "//127.0.0.1:")
    return address


def curl_line(address: str, model: str, *, key: bool, kind: str = "language") -> str:
    """An example request to a model of the kind, as a command line."""
    auth = ' -H "Authorization: Bearer $PIPPIN_API_KEY"' if key else ""
    path, fields = EXAMPLES.get(kind, EXAMPLES["language"])
    url = shlex.quote(f"{reachable(address)}/v1{path}")  # some shells look for files named `[::1]`
    if kind == "transcription":
        return f"curl {url}{auth} -F {shlex.quote(f'model={model}')} -F file=@speech.wav"
    body = json.dumps({"model": model, **fields})
    output = " --output hello.wav" if kind == "speech" else ""
    return f"curl {url} -H 'Content-Type: application/json'{auth} -d {shlex.quote(body)}{output}"


class Served(NamedTuple):
    """A model that requests may name."""

    name: str
    kind: str
    fault: str = ""  # why it cannot answer yet


def served_models(options: ServerOptions, catalog: "Catalog") -> list[Served]:
    """The models that the operator named; those that are not here keep the given name."""
    models = []
    for entry in options.models:
        if not entry.listed:
            continue
        try:
            info = catalog.resolve(entry.called)
            models.append(Served(info.id, info.kind))
        except ServerError as error:
            fault = DAMAGED if error.report.kind == "load_failed" else "not downloaded yet"
            models.append(Served(entry.called, entry.kind or "language", fault))
    return models


def example_of(catalog: "Catalog") -> Served | None:
    """A model to try if the operator named none: preferably one that chats. None if no model is here."""
    found = [Served(info.id, info.kind) for info in catalog.models()]
    chatting = [each for each in found if each.kind in ("language", "scripted")]
    return next(iter(chatting or found), None)


def greet(options: ServerOptions, address: str, models: Sequence[Served], example: Served | None) -> None:
    """Print the first lines when the server answers. `example` is the model to try if none is named."""
    names = [f"{each.name} ({each.fault})" if each.fault else each.name for each in models]
    lines = [f"Pippin {pippin.__version__} serves at {address}"]
    lines.append(f"Model: {', '.join(names)}" if models else NO_MODEL)
    if accelerator() == "cpu" and not has_cpu_kernels():
        lines.append(
            f"Without the kernels for CPUs, models run in float32, several times slower: {kernels_command()}"
        )
    page = f"The page: {reachable(address)}/    " if options.page else ""
    lines.append(f"{page}In a terminal: pippin run")
    tried = next((each for each in models if each.fault != DAMAGED), example)
    if tried is None:
        from pippin.catalog.fitting import suited

        fitting = suited("chat", memory_budget(options))
        fetch = (
            f"One that fits: pippin pull {fitting[0].id}" if fitting else "`pippin search tiny` may find one."
        )
        lines.append(f"No model is here. {fetch}")
    else:
        key = bool(options.api_keys or options.api_key_file)
        lines.append(f"Try it:\n  {curl_line(address, tried.name, key=key, kind=tried.kind)}")
    say("\n".join(lines))


@dataclass
class Preparation:
    """Downloads and loads the models named at the start. Progress is a bar on a terminal, else lines in the log."""

    options: ServerOptions
    catalog: "Catalog"
    service: "Service"
    started: float = field(default_factory=time.monotonic)
    greeted: asyncio.Event = field(default_factory=asyncio.Event)  # set once the address is told

    async def run(self) -> None:
        """Prepare all models. A failure is logged and stops nothing: requests may ask for the model again."""
        for entry in self.options.models:
            if entry.preload:
                try:
                    await self._load(await self._fetch(entry))
                except ServerError as error:
                    log.error("%s is not ready: %s", entry.called, error.report.message)

    async def _fetch(self, entry: ModelEntry) -> str:
        """Download the missing files of a model. Returns its name in the pool."""
        name = entry.called
        with progress(f"Downloading {name}:", bytes_counted=True, write=log.info) as tell:
            info = await self.catalog.fetch(entry.path, tell)
        return entry.name or info.id

    async def _load(self, name: str) -> None:
        loading = asyncio.ensure_future(self.service.pool.load(name))
        try:
            with progress(f"Loading {name}:", bytes_counted=True, write=log.info) as tell:
                while not loading.done():
                    known = self.catalog.resolve(name, by_operator=True)
                    for state in self.service.pool.states():
                        if state.id == known.id and state.progress is not None:
                            tell(*state.progress)
                    await asyncio.wait([loading], timeout=LOOK_EVERY)
            loaded = await loading
        except ServerError as error:
            if error.report.kind != "load_failed":  # the pool logs that kind itself
                raise
            return
        finally:
            loading.cancel()
        seconds = time.monotonic() - self.started
        await self.greeted.wait()
        # Nobody counts here what Ray has placed.
        memory = f" ({size(loaded.footprint)} in memory)" if loaded.footprint else ""
        say(f"{loaded.id} is ready after {seconds:.1f} s{memory}.")
