"""How one module of a loaded model gets other methods: by a subclass of its class, so that its parameters keep their
names. And how libraries get other functions for a while."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import mlx.nn as nn

Method = Callable[..., Any]


def become(module: nn.Module, kind: type) -> None:
    """Give the module another class. Its parameters and other attributes stay as they are."""
    module.__class__ = kind


def replace_method(module: nn.Module, name: str, around: Callable[[Method], Method], *, mark: str) -> None:
    """Give the module alone the method `around(own)` in place of its `own` method of this name.

    A method that was replaced under the same `mark` before is replaced, and not wrapped again.
    """
    base = unmarked(type(module), mark)
    become(module, type(base.__name__, (base,), {name: around(getattr(base, name)), mark: base}))


def unmarked(kind: type, mark: str) -> type:
    """The class before methods were replaced under this mark."""
    found: type = getattr(kind, mark, kind)
    return found


@contextmanager
def replaced(*places: tuple[Any, str, Callable[[Any], Any]]) -> Iterator[None]:
    """Within this context, each owner has, under a name, what `around(own)` makes of its `own` function."""
    with ExitStack() as restored:
        for owner, name, around in places:
            own = getattr(owner, name)
            restored.callback(setattr, owner, name, own)
            setattr(owner, name, around(own))
        yield
