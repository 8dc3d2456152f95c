"""Which modules of a model write a recurrent state, and with what they were called: so that a state can be computed
again as of an earlier token.

A layer's output depends on its inputs and its own state alone. To take tokens back from such a layer, its modules are
called again from the state before the step, with the inputs that they had, up to the last token that stays.
"""

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from msgspec import Struct, field

from pippin.engines.language.upstream.classes import Method, become, unmarked


class Call(Struct, frozen=True):
    """A call of a module that was given a state."""

    compute: Method  # the module's own method, which takes it as its first argument
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def again(self, count: int, start: int, stop: int) -> None:
        """Call it for the tokens `start` to `stop` of the `count` that it was called for. An `offset` is the position
        of the first of them."""

        def cut(value: Any) -> Any:
            along_tokens = isinstance(value, mx.array) and value.ndim > 1 and value.shape[1] == count
            return value[:, start:stop] if along_tokens else value

        kwargs = {name: cut(value) for name, value in self.kwargs.items()}
        if kwargs.get("offset") is not None:
            kwargs["offset"] = kwargs["offset"] + start
        self.compute(self.module, *map(cut, self.args), **kwargs)


class _Trial(Struct):
    """Finds the innermost modules that are given one of `caches`: those around them only pass it on, but for those that
    say so (`replayed_whole`), which write to it as well."""

    caches: frozenset[int]
    found: list[nn.Module] = field(default_factory=list)
    # Caches that were given to calls within each open call.
    _open: list[set[int]] = field(default_factory=list)

    def run(self, call: Call) -> Any:
        given = {id(value) for value in _values(call) if id(value) in self.caches}
        self._open.append(set())
        before = len(self.found)
        try:
            return call.compute(call.module, *call.args, **call.kwargs)
        finally:
            within = self._open.pop()
            if getattr(call.module, "replayed_whole", False):
                within = set()
                del self.found[before:]
            if given - within and not any(call.module is each for each in self.found):
                self.found.append(call.module)
            if self._open:
                self._open[-1] |= given | within


def _values(call: Call) -> Iterator[Any]:
    yield from call.args
    yield from call.kwargs.values()


def tell_calls(model: nn.Module, caches: list[Any], states: list[Any]) -> None:
    """Have the modules that write `states`, which are among the new `caches` of a prompt, tell what stands in their
    place of each of their calls, by its method `note(call)`.

    They are found by building one pass, which is not computed. A module tells by being of a subclass of its class; one
    that tells already stays so.
    """
    trial = _Trial(frozenset(map(id, states)))
    modules = [(module, unmarked(type(module), "quiet")) for _, module in model.named_modules()]
    tried = {base: _observed(base, trial.run) for base in {base for _, base in modules}}
    for module, base in modules:
        become(module, tried[base])
    try:
        model(mx.array([[1, 2, 3]]), cache=caches)
    finally:
        for module, base in modules:
            become(module, base)
    telling = {base: _observed(base, _told) for base in {type(module) for module in trial.found}}
    for module in trial.found:
        become(module, telling[type(module)])


def _told(call: Call) -> Any:
    for value in _values(call):
        if hasattr(value, "note"):
            value.note(call)
    return call.compute(call.module, *call.args, **call.kwargs)


def _observed(base: type, run: Callable[[Call], Any]) -> type:
    """A subclass whose calls go through `run`."""
    compute = base.__call__

    def observed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run(Call(compute, self, args, kwargs))

    return type(base.__name__, (base,), {"__call__": observed, "quiet": base})
