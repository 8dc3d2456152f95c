"""What a starting server tells the person who started it: where it is, what to try, how loading goes."""

import asyncio
import json
import logging
import shlex
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pippin
from pippin.cli.terminal import Progress, progress, say, size
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from pippin.catalog import Catalog
    from pippin.core.models import ModelState
    from pippin.service import Service

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.25  # seconds
NO_MODEL: Final = "No model is named: requests load them. `pippin list` shows what is here."


def reachable(address: str) -> str:
    """The address as this machine can use it."""
    for host in ("//0.0.0.0:", "//[::]:"):
        address = address.replace(host, "//127.0.0.1:")
    return address


def curl_line(address: str, model: str, *, key: bool) -> str:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello."}]})
    auth = ' -H "Authorization: Bearer $PIPPIN_API_KEY"' if key else ""
    url = shlex.quote(f"{reachable(address)}/v1/chat/completions")  # some shells look for files named `[::1]`
    return f"curl {url} -H 'Content-Type: application/json'{auth} -d {shlex.quote(body)}"


def name_of(entry: ModelEntry) -> str:
    return entry.name or entry.path


def served_names(options: ServerOptions, catalog: "Catalog") -> list[str]:
    """The names to ask for the models by; those that are still to be downloaded, by what they were named."""
    names = []
    for entry in options.models:
        if not entry.listed:
            continue
        try:
            names.append(catalog.resolve(name_of(entry)).id)
        except ServerError:
            names.append(name_of(entry))
    return names


def greet(options: ServerOptions, address: str, models: list[str], example: str) -> None:
    """The first lines, once the server answers. `example` is a model to try where none is named."""
    named = f"Model: {', '.join(models)}" if models else NO_MODEL
    key = bool(options.api_keys or options.api_key_file)
    line = curl_line(address, models[0] if models else example, key=key)
    say(f"Pippin {pippin.__version__} serves at {address}\n{named}\nTry it:\n  {line}")


@dataclass
class Preparation:
    """Downloads and loads the models named at the start, telling how it goes: in the log, which programs may read,
    where there is no terminal for a bar."""

    options: ServerOptions
    catalog: "Catalog"
    service: "Service"
    started: float = field(default_factory=time.monotonic)

    async def run(self) -> None:
        """A model that cannot be had is one line, and stops nothing: requests may ask for it again."""
        for entry in self.options.models:
            if entry.preload:
                try:
                    await self._prepare(entry)
                except ServerError as error:
                    log.error("%s is not ready: %s", name_of(entry), error.report.message)

    async def _prepare(self, entry: ModelEntry) -> None:
        name = name_of(entry)
        with progress(f"Downloading {name}:", bytes_counted=True, write=log.info) as tell:
            info = await self.catalog.ensure(entry.path, tell, by_operator=True)
            await self.catalog.complete(info, tell, by_operator=True)
        name = entry.name or info.id
        loading = asyncio.ensure_future(self.service.pool.load(name))
        try:
            with progress(f"Loading {name}:", bytes_counted=True, write=log.info) as tell:
                while not loading.done():
                    self._look(name, tell)
                    await asyncio.wait([loading], timeout=LOOK_EVERY)
            state = await loading
        finally:
            loading.cancel()
        seconds = time.monotonic() - self.started
        say(f"{state.id} is ready after {seconds:.1f} s ({size(state.footprint)} in memory).")

    def _look(self, name: str, tell: Progress) -> None:
        state = self._state(name)
        if state is not None and state.progress is not None:
            tell(*state.progress)

    def _state(self, name: str) -> "ModelState | None":
        known = self.catalog.resolve(name, by_operator=True)
        return next((state for state in self.service.pool.states() if state.id == known.id), None)
