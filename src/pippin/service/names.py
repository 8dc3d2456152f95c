"""What a name means to a request: a model's own, `default`, one of Claude's, or any at all.

Three sorts of name are no model's. `default`, and a request without a name, mean the model of the kind that the request
needs; so does a `claude-*` name that nothing here has, because Claude Code asks for several; and so does any unknown
name where the operator says that it may.
"""

import asyncio
from typing import Final

from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, ModelKind
from pippin.runtime.pool.source import Leases, ModelSource

DEFAULT: Final = "default"
CLAUDE: Final = "claude-"


class Names:
    """Resolves the names of requests. A `kind` of None is that of a tokenizer's task: the language model's is meant."""

    def __init__(self, options: ServerOptions, catalog: ModelSource, pool: Leases) -> None:
        self._options = options
        self._catalog = catalog
        self._pool = pool
        self._ids: dict[str, str] = {}  # of the models that the operator named, once they were looked up

    def adopt(self, options: ServerOptions) -> None:
        """Resolve by changed options from now on."""
        self._options = options
        self._ids.clear()

    def model(self, name: str, kind: ModelKind | None = None) -> ModelInfo:
        """What is known of the model, as its worker describes it where it is loaded. Raises `ServerError`."""
        loaded = self._pool.info(name)
        if loaded is not None and name != DEFAULT:
            return loaded
        meant = self.meant(name, kind)
        info = self._catalog.resolve(meant)
        if name == DEFAULT:
            self._ids[meant] = info.id
        return self._pool.info(info.id) or info

    async def find(self, name: str, kind: ModelKind | None = None) -> ModelInfo:
        """As `model`; for a model that is not in memory the disk is looked at, beside the event loop."""
        loaded = self._served_and_loaded(kind or "language") if name == DEFAULT else self._pool.info(name)
        return loaded if loaded is not None else await asyncio.to_thread(self.model, name, kind)

    def meant(self, name: str, kind: ModelKind | None = None) -> str:
        """The name by which the catalog knows the model, which may still be to be downloaded.

        Raises `ServerError("model_not_found")` where `default` stands for nothing.
        """
        if name == DEFAULT:
            return self._default(kind or "language")
        if name.startswith(CLAUDE):
            return (
                name
                if self._catalog.knows(name)
                else self._options.claude_model or self._default(kind or "language")
            )
        if self._options.any_model_name and not self._catalog.knows(name):
            served = self._served(kind or "language")
            return served[0].called if len(served) == 1 else name
        return name

    def _default(self, kind: ModelKind) -> str:
        """The first that is served, else the one loaded last, else the only one: of the kind, else of any.

        A model of another kind is named where there is none of this one, because its refusal says what would do.
        """
        for wanted in (kind, None):
            served = self._served(wanted)
            name = served[0].called if served else self._pool.last_loaded(wanted) or self._only(wanted)
            if name is not None:
                return name
        message = "No model is loaded yet, and none is served by default. Name one of those of /v1/models."
        raise ServerError("model_not_found", message, "model")

    def _served_and_loaded(self, kind: ModelKind) -> ModelInfo | None:
        """What `default` means where that is known without the disk: the first served model of the kind is in memory,
        and of those before it the kind is known too."""
        for entry in self._options.models:
            info = self._pool.info(self._ids.get(entry.called, entry.called))
            known = entry.kind or (None if info is None else info.kind)
            if entry.listed and (known is None or known in (kind, "scripted")):
                return info
        return None

    def _served(self, kind: ModelKind | None) -> list[ModelEntry]:
        """The models that the operator named, of this kind where one is given."""
        listed = [entry for entry in self._options.models if entry.listed]
        return [entry for entry in listed if kind is None or self._kind(entry) in (kind, "scripted")]

    def _kind(self, entry: ModelEntry) -> str:
        """The kind of a model that the operator named; one that is not here yet, and not said to be another, generates
        text."""
        if entry.kind is not None:
            return entry.kind
        info = self._pool.info(entry.called)
        try:
            return (info or self._catalog.resolve(entry.called)).kind
        except ServerError:
            return "language"

    def _only(self, kind: ModelKind | None) -> str | None:
        found = [
            info.id for info in self._catalog.models() if kind is None or info.kind in (kind, "scripted")
        ]
        return found[0] if len(found) == 1 else None
