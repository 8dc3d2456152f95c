"""Lists the models of peers beside those of this machine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ServerError
from pippin.core.models import HubModel, ModelInfo
from pippin.runtime.peers.peers import Peer, PeerLauncher, Peers
from pippin.runtime.pool.source import ModelSource
from pippin.runtime.ranks.group import RankLauncher
from pippin.runtime.replicas.processes import ReplicaLauncher
from pippin.runtime.workers.supervisor import WorkerProcess
from pippin.runtime.workers.worker import Launcher

MOST_NAMED: Final = 20  # peers' models listed in a refusal


@dataclass
class SourceWithPeers:
    """A `ModelSource` that knows the peers' models by their own names.

    A model that the operator named here belongs to this machine. Any other name that a peer serves is the peer's, even
    if it is also on this machine's disk.
    """

    local: ModelSource
    peers: Peers
    options: ServerOptions

    def models(self) -> list[ModelInfo]:
        remote = {name: info for name, info in self.peers.models().items() if not self._named_here(name)}
        return [*remote.values(), *(info for info in self.local.models() if info.id not in remote)]

    def resolve(self, name: str) -> ModelInfo:
        if (remote := self._remote(name)) is not None:
            return remote
        try:
            return self.local.resolve(name)
        except ServerError as error:
            raise self._with_names(error) from None

    async def ensure(self, name: str, on_progress: Callable[[int, int, str], None]) -> ModelInfo:
        if (remote := self._remote(name)) is not None:
            return remote
        try:
            return await self.local.ensure(name, on_progress)
        except ServerError as error:
            raise self._with_names(error) from None

    def missing(self) -> list[ModelInfo]:
        return self.local.missing()

    def knows(self, name: str) -> bool:
        return self._remote(name) is not None or self.local.knows(name)

    async def complete(self, info: ModelInfo, on_progress: Callable[[int, int, str], None]) -> None:
        if not info.remote:
            await self.local.complete(info, on_progress)

    async def search(self, words: str, *, limit: int, mlx_only: bool) -> list[HubModel]:
        return await self.local.search(words, limit=limit, mlx_only=mlx_only)

    def remove(self, name: str) -> object:
        return self.local.remove(name)

    def adopt(self, options: ServerOptions) -> None:
        self.options = options
        self.local.adopt(options)

    def options_for(self, info: ModelInfo) -> ModelOptions:
        return self.options.model_defaults if info.remote else self.local.options_for(info)

    def _with_names(self, error: ServerError) -> ServerError:
        """Add the names of the peers' models to the refusal of an unknown name."""
        known = sorted(self.peers.models())
        if error.report.kind != "model_not_found" or not known:
            return error
        message = f"{error.report.message} The peers have: {', '.join(known[:MOST_NAMED])}."
        return ServerError("model_not_found", message, "model")

    def _remote(self, name: str) -> ModelInfo | None:
        if self._named_here(name):
            return None
        known = self.peers.models()
        return known.get(name) or known.get(self.options.aliases.get(name, name))

    def _named_here(self, name: str) -> bool:
        return any(name in (entry.name, entry.path) for entry in self.options.models)


def open_peers(options: ServerOptions, local: ModelSource) -> tuple[Peers, ModelSource, Launcher]:
    """The peers that the options name, not checked yet; a model source that includes theirs, and a launcher for
    both."""
    peers = Peers([Peer(address, options.peer_api_key) for address in options.peers])
    launcher = PeerLauncher(peers, ReplicaLauncher(RankLauncher(WorkerProcess.launch)))
    return peers, SourceWithPeers(local, peers, options), launcher
