"""A catalog of scripted models, and a service over it: what tests of the rooms above need."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.conversation import Message, Text
from pippin.core.errors import ServerError
from pippin.core.events import Event
from pippin.core.models import HubModel, ModelInfo
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from pippin.runtime.pool import Pool
from pippin.service.service import Run, Service

MIB = 1 << 20


class StaticCatalog:
    """Names resolve to themselves; sizes and options are what the test says."""

    def __init__(
        self,
        *infos: ModelInfo,
        options: dict[str, ModelOptions] | None = None,
        sizes: dict[str, int] | None = None,
    ) -> None:
        self._infos = {info.id: info for info in infos}
        self.changed = dict(options or {})
        self._sizes = sizes or {}
        self.downloads: dict[str, ModelInfo] = {}
        self.asked_for: list[str] = []

    def models(self) -> list[ModelInfo]:
        return list(self._infos.values())

    def missing(self) -> list[ModelInfo]:
        return []

    def knows(self, name: str) -> bool:
        return name in self._infos

    def resolve(self, name: str) -> ModelInfo:
        if name not in self._infos:
            raise ServerError("model_not_found", f"The model {name!r} does not exist.", "model")
        return self._infos[name]

    async def ensure(self, name: str, on_progress: Callable[[int, int, str], None]) -> ModelInfo:
        """Downloads nothing, unless the test says what there is to download."""
        self.asked_for.append(name)
        if name in self.downloads:
            await asyncio.sleep(0.05)
            self._infos[name] = self.downloads[name]
        return self.resolve(name)

    async def search(self, words: str, *, limit: int, mlx_only: bool) -> list[HubModel]:
        return [HubModel(id=f"org/{words}", downloads=7, task=None)][:limit]

    async def complete(self, info: ModelInfo, on_progress: Callable[[int, int, str], None]) -> None:
        pass

    def adopt(self, options: ServerOptions) -> None:
        pass

    def options_for(self, info: ModelInfo) -> ModelOptions:
        return self.changed.get(info.id, ModelOptions())

    def footprint(self, info: ModelInfo, options: ModelOptions) -> int:
        return self._sizes.get(info.id, 100 * MIB)


def scripted(id: str = "scripted", script: Path | None = None, **facts: Any) -> ModelInfo:
    """A model of the scripted engine; without a script it echoes."""
    return ModelInfo(id=id, kind="scripted", path=None if script is None else str(script), **facts)


def write_script(folder: Path, *rules: dict[str, Any], name: str = "model", **script: Any) -> Path:
    """A script file of these rules; other keywords are fields of the script."""
    path = folder / f"{name}.script.json"
    path.write_text(json.dumps({"rules": rules, **script}))
    return path


def asked(text: str) -> Generate:
    """What a user says to the model `m`."""
    return Generate(GenerationRequest(model="m", messages=(Message("user", (Text(text),)),)))


async def events_of(run: Run) -> AsyncIterator[Event]:
    """The events of a run, to the end."""
    while events := await run.take():
        for event in events:
            yield event


async def answer(service: Service, text: str, id: str) -> str:
    """The whole answer of the model `m`."""
    async with aclosing(await service.start(asked(text), model="m", id=id)) as run:
        return (await run.collect()).choices[0].text("text")


@asynccontextmanager
async def scripted_service(
    *infos: ModelInfo, options: ServerOptions | None = None, catalog: StaticCatalog | None = None
) -> AsyncIterator[Service]:
    """A service with real worker processes over scripted models, closed at the end."""
    models = infos or (scripted(),)
    options = options or ServerOptions(models=(ModelEntry(path=models[0].id),))
    source = catalog or StaticCatalog(*models)
    service = Service(options, source, Pool(options, source, source.footprint, 8 << 30))
    try:
        yield service
    finally:
        await service.close(0.0)
