"""What a requested name means: a model's own name, `default`, a Claude name, or any name at all.

Three sorts of names belong to no model. `default`, or no name, means the model of the kind that the request needs. So
does a `claude-*` name that no model here has, because Claude Code asks for several of them. So does any unknown name,
if the operator allows that.
"""

import asyncio
from typing import Final

from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, ModelKind
from pippin.runtime.pool.pool import Pool
from pippin.runtime.pool.source import ModelSource

DEFAULT: Final = "default"
CLAUDE: Final = "claude-"


class Names:
    """Resolves names in requests. `kind` is None for tokenizer tasks, which mean the language model."""

    def __init__(self, options: ServerOptions, catalog: ModelSource, pool: Pool) -> None:
        self._catalog = catalog
        self._pool = pool
        self.adopt(options)

    def adopt(self, options: ServerOptions) -> None:
        """Resolve by changed options from now on."""
        self._options = options
        self._listed = [(entry.called, entry.kind) for entry in options.models if entry.listed]
        self._ids: dict[str, str] = {}  # of models that the operator named, filled on first lookup

    def model(self, name: str, kind: ModelKind | None = None) -> ModelInfo:
        """The model's info, from its worker if it is loaded. Raises `ServerError`."""
        loaded = self._pool.info(name)
        if loaded is not None and name != DEFAULT:
            return loaded
        meant = self.meant(name, kind)
        info = self._catalog.resolve(meant)
        if name == DEFAULT:
            self._ids[meant] = info.id
        return self._pool.info(info.id) or info

    async def find(self, name: str, kind: ModelKind | None = None) -> ModelInfo:
        """Find what `model` finds; a lookup that needs the disk runs in a thread."""
        loaded = self._served_and_loaded(kind or "language") if name == DEFAULT else self._pool.info(name)
        return loaded if loaded is not None else await asyncio.to_thread(self.model, name, kind)

    def meant(self, name: str, kind: ModelKind | None = None) -> str:
        """The catalog's name for the model, which may not be downloaded yet.

        Raises `ServerError("model_not_found")` where `default` resolves to nothing.
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
            return served[0] if len(served) == 1 else name
        return name

    def _default(self, kind: ModelKind) -> str:
        """The first served model, else the one loaded last, else the only one: of this kind, else of any kind.

        A model of another kind is better than none: its refusal names the models that would do.
        """
        for wanted in (kind, None):
            served = self._served(wanted)
            name = served[0] if served else self._pool.last_loaded(wanted) or self._only(wanted)
            if name is not None:
                return name
        message = "No model is loaded yet, and none is served by default. Name one of those of /v1/models."
        raise ServerError("model_not_found", message, "model")

    def _served_and_loaded(self, kind: ModelKind) -> ModelInfo | None:
        """The model that `default` means, if that can be decided without the disk: the first served model of the kind
        is loaded, and the kinds of all entries before it are known."""
        for name, given in self._listed:
            info = self._pool.info(self._ids.get(name, name))
            known = given or (None if info is None else info.kind)
            if known is None or known in (kind, "scripted"):
                return info
        return None

    def _served(self, kind: ModelKind | None) -> list[str]:
        """The names of the models that the operator named, of this kind if one is given."""
        return [
            name
            for name, given in self._listed
            if kind is None or (given or self._kind(name)) in (kind, "scripted")
        ]

    def _kind(self, name: str) -> str:
        """The kind of a model that the operator named without one. One that is not here yet is taken for a language
        model."""
        info = self._pool.info(name)
        try:
            return (info or self._catalog.resolve(name)).kind
        except ServerError:
            return "language"

    def _only(self, kind: ModelKind | None) -> str | None:
        found = [
            info.id for info in self._catalog.models() if kind is None or info.kind in (kind, "scripted")
        ]
        return found[0] if len(found) == 1 else None
