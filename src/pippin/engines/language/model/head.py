"""The projection onto the vocabulary: of a prompt's chunk, only the position that is sampled from needs it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import mlx.core as mx
import mlx.nn as nn

from pippin.engines.language.kv_cache.layout import new_prompt_cache
from pippin.engines.language.kv_cache.probe import tolerance

HEAD = "lm_head"
EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)  # which a model may use as its head


class Head:
    """`only` makes a model's projection compute one position of each row. Models are wired each in its own way, so
    `works` is found by trying; where it does not, the last token of a prompt is computed by itself."""

    def __init__(self, model: nn.Module, vocabulary: int) -> None:
        self._positions: mx.array | None = None
        for path, module in model.named_modules():
            if path.rsplit(".", 1)[-1] == HEAD:
                self._narrow(module, "__call__")
            elif isinstance(module, EMBEDDINGS) and module.weight.shape[0] == vocabulary:
                self._narrow(module, "as_linear")
        self.works = self._try(model)

    def _narrow(self, module: nn.Module, method: str) -> None:
        """Give the module a class of its own, in place of one that it has from a `Head` before: its parameters keep
        their names."""
        base = getattr(type(module), "whole", type(module))
        project = getattr(base, method)

        def narrowed(self_: nn.Module, x: mx.array) -> mx.array:
            found: mx.array = project(self_, self._picked(x))
            return found

        module.__class__ = type(base.__name__, (base,), {method: narrowed, "whole": base})

    def _try(self, model: nn.Module) -> bool:
        tokens = mx.array([[1, 2, 3]])
        whole = model(tokens, cache=new_prompt_cache(model))[:, 1]
        with self.only([1]):
            narrowed = model(tokens, cache=new_prompt_cache(model))
        if narrowed.shape[1] != 1:
            return False
        difference = mx.abs(narrowed[:, 0] - whole).max() / mx.maximum(mx.abs(whole).max(), 1e-6)
        return float(difference) < tolerance(whole.dtype)

    def _picked(self, x: mx.array) -> mx.array:
        """The wanted positions [rows, 1, hidden] of x [rows, tokens, hidden]."""
        if self._positions is None or x.ndim != 3 or x.shape[0] != self._positions.size:
            return x
        return x[mx.arange(x.shape[0]), self._positions][:, None]

    @contextmanager
    def only(self, positions: Sequence[int]) -> Iterator[None]:
        """Within, a call of the model with [rows, tokens] gives logits [rows, 1, vocabulary], at these positions."""
        self._positions = mx.array(list(positions), dtype=mx.int32)
        try:
            yield
        finally:
            self._positions = None

    def last(self, logits: mx.array, positions: Sequence[int]) -> mx.array:
        """Logits [rows, vocabulary] from a call within `only` of the same positions, narrowed or not."""
        if logits.shape[1] == 1:
            return logits[:, 0]
        return logits[mx.arange(logits.shape[0]), mx.array(list(positions), dtype=mx.int32)]
