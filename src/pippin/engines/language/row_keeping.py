"""What running rows leave to the prefix cache: the text of one that ends, and recurrent state on the way."""

from pippin.engines.language.batch import Batch
from pippin.engines.language.prefix_cache import PrefixCache
from pippin.engines.language.row_caches import RowCache
from pippin.engines.language.rows import Row


class RowKeeping:
    """A row that ends is `noted` at once and kept with `settle`: copying it waits for the step under way, and the
    client should not."""

    def __init__(self, batch: Batch, prefixes: PrefixCache | None) -> None:
        self._batch = batch
        self._prefixes = prefixes
        self._noted: list[tuple[bytes, tuple[int, ...], RowCache]] = []

    def __bool__(self) -> bool:
        """Whether rows wait to be kept."""
        return bool(self._noted)

    def note(self, row: Row) -> None:
        """Remember a row that is about to leave: a conversation goes on from its end."""
        if self._prefixes is None:
            return
        length = min(self._batch.groups.computed(row), len(row.tokens))
        stop = length // self._prefixes.tree.block_tokens * self._prefixes.tree.block_tokens
        if stop and self._earliest(row, length) <= stop:
            job = row.request.job
            self._noted.append((job.key, job.identify(row.tokens[:stop]), self._batch.groups.view(row, stop)))

    def _earliest(self, row: Row, length: int) -> int:
        """The first position as of which a row of this length can be had."""
        assert self._prefixes is not None
        if self._prefixes.has_state or not self._batch.groups.looks_back(row):
            return length  # state is of the very end
        if self._prefixes.has_snapshots:
            return row.joined  # a window came with what it needs to go on from there
        return 0

    def settle(self) -> None:
        """Copy what was noted; before the next step is built, which would have to copy whole rows otherwise."""
        noted, self._noted = self._noted, []
        if self._prefixes is not None:
            for key, tokens, cache in noted:
                self._prefixes.keep(key, tokens, cache)

    def keep_states(self) -> None:
        """Recurrent state cannot be had back later: remember it as rows pass a block's border."""
        if self._prefixes is None or not self._prefixes.has_state:
            return
        for row in self._batch.rows:
            length = self._batch.groups.length(row)
            if length % self._prefixes.tree.block_tokens == 0 and length <= len(row.tokens):
                tokens = row.request.job.identify(row.tokens[:length])
                self._prefixes.keep_state(row, tokens, self._batch.groups.view(row, length))
