"""The hidden states that a pass of a model leaves: what heads that draft its next tokens start from."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.core.errors import ServerError
from pippin.engines.language.kernels.ways import decoder_in
from pippin.engines.language.model.head import Head
from pippin.engines.language.upstream.classes import Method, replace_method


class HiddenStates:
    """The states after the last norm, which the head projects, or those after some layers, side by side."""

    def __init__(self, model: nn.Module, head: Head, layers: Sequence[int] | None) -> None:
        """`layers` ascend; None for the states after the last norm. Raises `ServerError` for a layer that the model
        does not have."""
        self._head = head
        self._layers = layers
        self._after: dict[int, list[mx.array]] = {number: [] for number in layers or ()}
        self._decoder = None if layers is None else decoder_in(model)  # which captures them itself
        if layers is None:
            head.watch(True)
            return
        theirs: list[Any] = model.layers
        if not layers or list(layers) != sorted({*layers}.intersection(range(len(theirs)))):
            message = (
                f"The draft head starts from the layers {', '.join(map(str, layers))}, and the model has "
                f"{len(theirs)}: choose the head that was made for this model."
            )
            raise ServerError("load_failed", message, "draft_model_path")
        if self._decoder is not None:
            self._decoder.capture(layers)
        else:
            for number in layers:
                self._watch(theirs[number], number)

    def _watch(self, layer: nn.Module, number: int) -> None:
        """Note what a layer gives. Nothing is noted any more for those that watched it before."""
        after = self._after

        def watched(compute: Method) -> Method:
            def call(self_: nn.Module, *given: Any, **named: Any) -> Any:
                found = compute(self_, *given, **named)
                # Some have several streams for each token, which heads start from side by side.
                after[number].append((found[0] if isinstance(found, tuple) else found).flatten(2))
                return found

            return call

        replace_method(layer, "__call__", watched, mark="unwatched")

    def take(self) -> mx.array:
        """The states of the model's last call [sequences, tokens, size], once."""
        if self._layers is None:
            return _last(self._head.seen)
        if self._decoder is not None:  # in one call
            found, self._decoder.captured = self._decoder.captured, None
            assert found is not None  # the model has just run
            return found
        parts = [_last(self._after[number]) for number in self._layers]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)


def _last(noted: list[mx.array]) -> mx.array:
    """The last of what was noted. What comes before it is of passes that nobody asked about."""
    found = noted[-1]
    noted.clear()
    return found
