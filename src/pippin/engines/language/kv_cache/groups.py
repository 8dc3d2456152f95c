"""Where the rows of a model lie: the groups of rows that go through it together, and the memory that they may take."""

import sys
from collections.abc import Callable, Iterable, Iterator

from pippin.engines.language.kv_cache import capacity as sizes
from pippin.engines.language.kv_cache.group import RowGroup
from pippin.engines.language.kv_cache.kinds import RowCache
from pippin.engines.language.kv_cache.slots import Reservation
from pippin.engines.language.step.sequences import GroupName, Prefilling, Running


class RowGroups:
    """Rows of a class of lengths share a group; a row's `group` and `slot` are kept here."""

    def __init__(self, new_group: Callable[[int], RowGroup], plain_below: int) -> None:
        """`new_group` is told the tokens of its shortest row; rows of fewer than `plain_below` have groups apart."""
        self._new_group = new_group
        self._plain_below = plain_below
        self._groups: dict[GroupName, RowGroup] = {}
        self._rows: dict[Running, None] = {}  # in the order in which they joined
        self.limit = sys.maxsize  # bytes that all rows may take

    def reserve(self, prompt: Prefilling, *, coming: int = 0) -> Reservation | None:
        """A slot in which to compute the prompt of this row, if it can be. `coming`: as many like it will follow."""
        name = self._name(prompt, prompt.length)
        room, coming = self._room(name, prompt, prompt.length, coming)
        return self._groups[name].reserve(prompt.length, room, coming)

    def release(self, prompt: Prefilling, reservation: Reservation) -> None:
        """The row will not come."""
        self._groups[self._name(prompt, prompt.length)].release(reservation)
        self._forget_empty()

    def join(
        self, row: Running, cache: RowCache, reservation: Reservation | None, *, coming: int = 0
    ) -> None:
        """Take a row whose tokens are in `cache`, which may be used again, if it does not lie in a slot that was
        reserved."""
        length = len(row.sequence.tokens)
        row.group = name = self._name(row, length)
        room = 0
        if reservation is None:
            room, coming = self._room(name, row, length, coming)
        row.slot = self._groups[name].join(
            cache, length, room, row.sequence.request.shift, coming, reservation
        )
        self._rows[row] = None

    def leave(self, rows: Iterable[Running]) -> None:
        for row in rows:
            self._groups[row.group].leave(row.slot)
            del self._rows[row]
        self._forget_empty()

    def _name(self, stage: Prefilling | Running, length: int) -> GroupName:
        return stage.length_class, length < self._plain_below

    def _room(
        self, name: GroupName, stage: Prefilling | Running, length: int, coming: int = 0
    ) -> tuple[int, int]:
        """For how many tokens more of such a row, and for how many of the rows that are coming, its group has places to
        spare."""
        if name not in self._groups:
            self._groups[name] = self._new_group(length)
        room = min(stage.growth, sizes.GROWTH_CHARGED)
        needed = self._groups[name].bytes_with(length, room, coming)
        others = sum(group.bytes_after(1) for other, group in self._groups.items() if other != name)
        if others + needed <= self.limit:
            return room, coming
        self._pack()
        return 0, 0

    def fit(self, limit: int, count: int = 1) -> bool:
        """Before a step of so many tokens: give up places to spare where `limit`, the bytes that rows may take, asks
        for it; whether the step fits then. The scheduler sees to it that a step of one token does once it has
        preempted."""
        self.limit = limit
        self._promote()
        if self._bytes_after(count) <= limit:
            return True
        self._pack()
        return self._bytes_after(count) <= limit

    def _promote(self) -> None:
        """Rows that have grown out of their group go over to another."""
        for row in self._rows:
            length = self.length(row)
            kind, plain = row.group
            if kind == row.length_class and not (plain and length >= self._plain_below):
                continue
            name = self._name(row, length)
            room, _ = self._room(name, row, length)
            source, slot = self._groups[row.group], row.slot
            row.group, row.slot = name, self._groups[name].adopt(source, slot, room)
        self._forget_empty()

    def _bytes_after(self, count: int) -> int:
        return sum(group.bytes_after(count) for group in self._groups.values())

    def _pack(self) -> None:
        for name, group in self._groups.items():
            self._moved(name, {} if group.empty else group.pack())

    def compact(self) -> None:
        """Move rows into holes where it pays."""
        for name, group in self._groups.items():
            self._moved(name, dict(group.compact()))

    def _moved(self, name: GroupName, slots: dict[int, int]) -> None:
        if slots:
            for row in self._rows:
                if row.group == name:
                    row.slot = slots.get(row.slot, row.slot)

    def _forget_empty(self) -> None:
        for name in [name for name, group in self._groups.items() if group.empty]:
            del self._groups[name]

    def running(self) -> Iterator[tuple[RowGroup, dict[int, Running]]]:
        """Each group that has rows, and these by their slots."""
        for name, group in self._groups.items():
            if group.low < group.high:
                yield group, {row.slot: row for row in self._rows if row.group == name}

    def view(self, row: Running, stop: int) -> RowCache:
        return self._groups[row.group].view(row.slot, stop)

    def looks_back(self, row: Running) -> bool:
        return self._groups[row.group].looks_back(row.slot)

    def length(self, row: Running) -> int:
        """Tokens in the row's cache."""
        return self._groups[row.group].length(row.slot)

    def rewind(self, row: Running, tokens: int) -> None:
        """Forget the last tokens of a row."""
        self._groups[row.group].rewind(row.slot, tokens)

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self._groups.values())
