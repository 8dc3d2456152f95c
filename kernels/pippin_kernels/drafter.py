"""A draft head: layers that say a model's next tokens from its own hidden states."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pippin_kernels.binding import Floats, Kernels, Step, check
from pippin_kernels.decoder import Shape, check_norm, check_places
from pippin_kernels.errors import KernelError
from pippin_kernels.matrix import Matrix, address
from pippin_kernels.structures import CDrafting


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """What a head of EAGLE-3's kind has beside its layers, the first of which takes vectors of 2 hidden numbers.

    `reduce` [hidden, state_size] makes its own states of the model's, normed by `reduce_norm` [state_size] before. The
    first layer looks at the token's embedding and the state, normed by `token_norm` and `state_norm` [hidden] each, and
    adds to the state, normed where `normed_residual`. Row i of `head` stands for token words[i], or i without `words`.
    """

    reduce: Matrix
    head: Matrix
    token_norm: Floats
    state_norm: Floats
    reduce_norm: Floats | None = None
    words: NDArray[np.int32] | None = None
    normed_residual: bool = False


class Drafter:
    """Reads a model's states and drafts what follows, in one call. Holds the weights, and the kernels' threads."""

    def __init__(self, kernels: Kernels, shape: Shape, drafting: Drafting) -> None:
        """Raises `KernelError` where weights do not fit each other."""
        self.shape = shape
        self.drafting = drafting
        self.kernels = kernels
        self._drafter: int | None = None
        check_norm(drafting.token_norm, shape.hidden)
        check_norm(drafting.state_norm, shape.hidden)
        check_norm(drafting.reduce_norm, self.state_size)
        words = drafting.words
        if words is not None and (words.shape != (drafting.head.rows,) or words.dtype != np.int32):
            raise KernelError("A draft head names a token for each row of its projection.")
        norms = drafting.reduce_norm, drafting.token_norm, drafting.state_norm
        structure = CDrafting(
            drafting.reduce.structure(),
            drafting.head.structure(),
            *map(address, norms),
            address(words),
            drafting.normed_residual,
        )
        library = kernels.library
        self._drafter = check(library.pk_drafter_open(kernels.context, shape.structure(), structure))

    @property
    def state_size(self) -> int:
        """Numbers of a state of the model."""
        return self.drafting.reduce.columns

    def run(
        self, tokens: NDArray[np.int32], states: Floats, step: Step, most: int, *, own: Floats | None = None
    ) -> NDArray[np.int32]:
        """Read tokens [all of the step], each with the model's state before it [tokens, state_size]; then draft `most`
        behind each sequence's last: [sequences, most]. The keys and values of all but the last of these are written,
        too. `own` [tokens, hidden] takes the head's own states of the tokens read. Raises `KernelError`."""
        tokens, states = np.ascontiguousarray(tokens, np.int32), np.ascontiguousarray(states, np.float32)
        check_places(self.shape, step, len(self.shape.layers))
        if tokens.shape != (step.tokens,) or states.shape != (step.tokens, self.state_size):
            raise KernelError("A draft head takes a token and a state for each token of the step.")
        room = (step.tokens, self.shape.hidden)
        if own is not None and (own.shape != room or own.dtype != np.float32 or not own.flags.c_contiguous):
            raise KernelError("The own states of a draft head are float32 [tokens, hidden].")
        drafts = np.empty((len(step.starts), most), np.int32)
        arguments = address(tokens), address(states), address(own), most, address(drafts)
        check(self.kernels.library.pk_drafter_run(self._open(), step.structure(), *arguments))
        return drafts

    def _open(self) -> int:
        if self._drafter is None:
            raise KernelError("The draft head was closed.")
        return self._drafter

    def close(self) -> None:
        if self._drafter is not None:
            self.kernels.library.pk_drafter_close(self._drafter)
            self._drafter = None

    def __del__(self) -> None:
        if getattr(self, "_drafter", None) is not None:
            self.close()
