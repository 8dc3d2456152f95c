"""What a batch asks of the rows that go through the model together, whatever they lie in."""

from typing import Protocol, Self

import mlx.core as mx

from pippin.engines.language.kv_cache.kinds import RowCache
from pippin.engines.language.kv_cache.slots import Reservation


class RowGroup(Protocol):
    """`low` to `high` are the slots that a step computes; `forward` takes and gives one entry for each of them."""

    @property
    def low(self) -> int: ...

    @property
    def high(self) -> int: ...

    @property
    def empty(self) -> bool:
        """Whether it has no rows, and none to come."""
        ...

    def reserve(self, length: int, room: int, coming: int = 0) -> Reservation | None:
        """A slot in which to compute the prompt of a row of `length` tokens, which will grow by up to `room`; None
        where prompts cannot be computed in slots. As many rows as are `coming` will follow soon. A row without room has
        nothing made to spare for it."""
        ...

    def join(
        self,
        cache: RowCache,
        length: int,
        room: int,
        shift: int = 0,
        coming: int = 0,
        reservation: Reservation | None = None,
    ) -> int:
        """Take a row, and copy what of it does not lie in its slot yet; gives its slot. `shift` is what rotary
        positions differ by from the tokens' places."""
        ...

    def release(self, reservation: Reservation) -> None:
        """The row will not come."""
        ...

    def leave(self, slot: int) -> None: ...

    def length(self, slot: int) -> int: ...

    def rewind(self, slot: int, tokens: int) -> None:
        """Forget the last tokens of a row."""
        ...

    def forward(self, tokens: mx.array) -> mx.array:
        """Run tokens [slots, n] through the model and its caches: logits [slots, n, vocabulary]."""
        ...

    def compact(self) -> list[tuple[int, int]]:
        """Move rows into holes where it pays; (old slot, new slot) of each."""
        ...

    def looks_back(self, slot: int) -> bool:
        """Whether a row can be viewed as of a position before its end."""
        ...

    def view(self, slot: int, stop: int) -> RowCache:
        """A row as a cache of its own, as of position `stop` of what is computed; good until the next step. Windows can
        look back by the slack, recurrent state is the row's newest."""
        ...

    @property
    def bytes(self) -> int: ...

    def bytes_with(self, length: int, room: int, coming: int = 0) -> int:
        """Bytes at most, after such a row has joined."""
        ...

    def bytes_after(self, count: int) -> int:
        """Bytes at most, after a step of so many tokens."""
        ...

    def pack(self) -> dict[int, int]:
        """Give up all places to spare; the new slot of each row by its old one, nothing if there are none.
        Reservations learn theirs."""
        ...

    def adopt(self, other: Self, slot: int, room: int) -> int:
        """Take a row over from another group of the model, as it is stored there; gives its slot."""
        ...
