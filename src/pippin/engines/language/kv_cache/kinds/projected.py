"""What a model keeps of a prompt to save work alone (GLM 5 Next): latent vectors as keys and values.

Nothing is lost with it: where it does not have all tokens, the model projects the latent vectors again. So a prompt has
it while it is computed, and neither batches nor the prefix cache keep it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from pippin.engines.language.kv_cache.kinds.base import BatchedCache, CacheKind
from pippin.engines.language.kv_cache.slots import SlotTable


class ProjectedCache:
    """A prompt's own, in place of a `KVCache` that the model fills while it has all tokens before."""

    def __init__(self, token_bytes: int = 0) -> None:
        """`token_bytes` are those of a token's keys and values; 0 for one that the model never fills."""
        self.token_bytes = token_bytes
        self.held = KVCache()

    def size(self) -> int:
        tokens: int = self.held.offset
        return tokens

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return self.held.update_and_fetch(keys, values)

    @property
    def state(self) -> list[mx.array]:
        return [] if self.held.keys is None else [self.held.keys, self.held.values]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.state)

    def empty(self) -> bool:
        return self.held.keys is None

    def is_trimmable(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class ProjectedKind(CacheKind):
    serves: ClassVar[tuple[type, ...]] = (ProjectedCache,)

    token_bytes: int

    @classmethod
    def of(cls, cache: ProjectedCache) -> Self:
        return cls(token_bytes=cache.token_bytes)

    @classmethod
    def like(cls, cache: ProjectedCache, beside: Sequence[Any]) -> ProjectedCache:
        return ProjectedCache(cache.token_bytes)

    @property
    def snapshots(self) -> bool:
        return False

    def slot_bytes(self, capacity: int, slack: int) -> int:
        return 0

    def prompt_bytes(self, capacity: int, chunk: int) -> int:
        return self.token_bytes * capacity

    def presize(self, cache: ProjectedCache, tokens: int) -> None:
        cache.held.step = tokens

    def batched(self, slots: SlotTable) -> "BatchedProjected":
        return BatchedProjected(slots)


KIND = ProjectedKind


class BatchedProjected(BatchedCache):
    """Holds nothing: the model projects the latent vectors again."""

    def size(self) -> int:
        """Never as many tokens as there are, so that the model asks no more."""
        return -1

    def store(self, slot: int, cache: ProjectedCache) -> None:
        pass

    def adopt(self, slot: int, other: "BatchedProjected", theirs: int) -> None:
        pass

    def view(self, slot: int, stop: int) -> ProjectedCache:
        return ProjectedCache()

    def pack(self, kept: Sequence[int], capacity: int) -> None:
        pass

    def arrays(self) -> list[mx.array]:
        return []
