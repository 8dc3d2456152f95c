"""The projection onto the vocabulary, computed only for the position of a prompt's chunk that is sampled from."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.engines.language.kv_cache.agreement import (
    EMBEDDINGS,
    Passed,
    difference,
    in_float32,
    ordinary_tokens,
    passed,
    tolerance,
)
from pippin.engines.language.kv_cache.layout import new_prompt_cache
from pippin.engines.language.upstream.classes import Method, replace_method, unmarked

HEAD = "lm_head"


def _words(module: nn.Module) -> int | None:
    """How many words an embedding has that may be the head, too; None for other layers."""
    if isinstance(module, EMBEDDINGS):
        return int(module.weight.shape[0])
    words = getattr(module, "vocabulary", None)  # of an embedding that is not MLX's
    return words if hasattr(module, "as_linear") else None


class Head:
    """Within `only`, a model's head computes the logits of one position of each sequence.

    Models call their heads in different ways, so `works` says whether a trial gave the right logits. Where it is false
    `only` does nothing, and the last token of a prompt has to be computed by itself.
    """

    def __init__(self, model: nn.Module, vocabulary: int, named: str | None = None) -> None:
        """`named`: as in `choose_batching`."""
        self._positions: mx.array | None = None
        self._farthest = 0  # of these positions
        self.watched = False  # all that is projected is noted in `seen`
        # The class of one module, the name of its method, the method of its own, and the one that narrows.
        self._methods: list[tuple[type, str, Method, Method]] = []
        self.seen: list[mx.array] = []  # [batch, tokens, hidden] each, that were projected, where `watched`
        for path, module in model.named_modules():
            if path.rsplit(".", 1)[-1] == HEAD:
                self._narrow(module, "__call__")
            elif _words(module) == vocabulary:
                self._narrow(module, "as_linear")
        self.works = True
        self.works = passed("one position", partial(self._tried, model, vocabulary), named) is not None

    def _narrow(self, module: nn.Module, method: str) -> None:
        """Have this module project the wanted positions alone, within `only` or where it is `watched`: a plain step
        goes past here. What an earlier `Head` gave it is replaced."""

        def narrowed(project: Method) -> Method:
            return lambda self_, x: project(self_, self._picked(x))

        replace_method(module, method, narrowed, mark="whole")
        kind = type(module)
        self._methods.append((kind, method, getattr(unmarked(kind, "whole"), method), getattr(kind, method)))
        self._narrows(self.watched)

    def _narrows(self, narrows: bool) -> None:
        for kind, name, own, narrowed in self._methods:
            setattr(kind, name, narrowed if narrows else own)

    def watch(self, watched: bool) -> None:
        """Note all that is projected in `seen` from now on, or no more."""
        self.watched = watched
        self._narrows(watched)

    def _tried(self, model: nn.Module, vocabulary: int, attempt: int) -> Passed:
        """How far the logits of one position are from those of a whole forward pass."""
        tokens = mx.array([ordinary_tokens(vocabulary, 3, attempt)])
        with in_float32(model):
            whole = model(tokens, cache=new_prompt_cache(model))[:, 1]
            with self.only([1]):
                narrowed = model(tokens, cache=new_prompt_cache(model))
            found = difference(narrowed[:, 0], whole) if narrowed.shape[1] == 1 else math.inf
        return Passed(found, tolerance(whole))

    def _picked(self, x: mx.array) -> mx.array:
        """The wanted positions [batch, positions, hidden] of x [batch, tokens, hidden]; x itself outside of `only`."""
        if self.watched:
            self.seen.append(x)
        if self._positions is None or x.ndim != 3 or x.shape[0] != self._positions.shape[0]:
            return x
        # Some models of mlx-vlm project few tokens one by one. MLX reads past an array without an error.
        if x.shape[1] <= self._farthest:
            return x
        return x[mx.arange(x.shape[0])[:, None], self._positions]

    @contextmanager
    def only(self, positions: Sequence[int] | Sequence[Sequence[int]]) -> Iterator[None]:
        """Within this context, the model's logits are [batch, positions, vocabulary], of one position of each
        sequence, or of equally many; of all positions where this does not work."""
        if not self.works:
            yield
            return
        wanted = np.array(positions, np.int32).reshape(len(positions), -1)
        self._positions, self._farthest = mx.array(wanted), int(wanted.max())
        self._narrows(True)
        try:
            yield
        finally:
            self._positions = None
            self._narrows(self.watched)

    def last(self, logits: mx.array, positions: Sequence[int]) -> mx.array:
        """Logits [batch, vocabulary] at these positions, of a call within `only` whether or not it `works`."""
        if logits.shape[1] == 1:
            return logits[:, 0]
        return logits[mx.arange(logits.shape[0]), mx.array(list(positions), dtype=mx.int32)]
