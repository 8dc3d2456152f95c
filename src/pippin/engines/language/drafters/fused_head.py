"""EAGLE-3 heads whose layers, projection and choice the kernels compute in one call."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from mlx_vlm.speculative.drafters.eagle3.eagle3 import Eagle3DraftModel
from numpy.typing import NDArray
from pippin_kernels import Drafter, Drafting, Kernels, Matrix, Shape, Step

from pippin.engines.language.drafters.heads import DraftHead, Reading
from pippin.engines.language.kernels.agreement import require_agreement
from pippin.engines.language.kernels.architectures import ARCHITECTURES, LARGEST_HEAD, rope_of
from pippin.engines.language.kernels.decoder import KeptPlaces, KernelDecoder, padded_states
from pippin.engines.language.kernels.description import Describer
from pippin.engines.language.kernels.matrices import floats, matrix_of, why_no_matrix, widened
from pippin.engines.language.kernels.places import open_in_place
from pippin.engines.language.kv_cache.kinds.base import TokenArray
from pippin.engines.language.kv_cache.layout import PADDING
from pippin.engines.language.kv_cache.slots import PromptCache

LLAMA = next(each for each in ARCHITECTURES if each.module == "llama")
TRIED = 2  # tokens


def why_not(inner: Any, model: Any) -> str | None:
    """Why the kernels cannot compute this head of mlx-vlm's for a model, or None. Looks at no weight."""
    if type(inner) is not Eagle3DraftModel:
        return f"the drafter {type(inner).__name__} is not one that the kernels know"
    if not isinstance(model, KernelDecoder):
        return "the kernels do not compute the model in whole layers"
    try:
        for layer in inner.layers:
            attention = layer.self_attn
            rope_of(attention.rope)
            if attention.head_dim > LARGEST_HEAD:
                return "its heads are of a size that the kernels do not know"
    except TypeError as error:
        return str(error)
    return next(filter(None, map(why_no_matrix, _matrices(inner))), None)


def _matrices(inner: Eagle3DraftModel) -> list[Any]:
    found = [inner.fc]
    for layer in inner.layers:
        attention, network = layer.self_attn, layer.mlp
        found += [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        found += [network.gate_proj, network.up_proj, network.down_proj]
    return found if inner.lm_head is None else [*found, inner.lm_head]


class FusedHead(DraftHead):
    """An EAGLE-3 head. Called with states it reads them; called with a `Reading`, it drafts too."""

    takes_padding = True
    in_one_call = True

    def __init__(self, inner: Any, model: KernelDecoder) -> None:
        """`inner` is a head to which `why_not` has no objection. Raises `ValueError` for damaged weights, and
        `OtherAnswer` if the kernels compute something else than mlx-vlm."""
        super().__init__(None, 3 * inner.target_hidden_size, tuple(inner.config.capture_layer_ids))
        kernels, embedding = model.kernels, model.embedding
        # A head of another width than the model's has an embedding of its own.
        is_theirs = inner.hidden_size == embedding.columns
        shape, drafting = _describe(inner, embedding if is_theirs else matrix_of(inner.embed_tokens))
        self._token = TokenArray(shape.kv_heads, shape.head_dim, mx.float32)
        self._kept = KeptPlaces()
        own = shape.nbytes - (shape.embedding.nbytes if is_theirs else 0)
        self.own_bytes = own + drafting.reduce.nbytes + drafting.head.nbytes
        # Compared in float32: the model's kernels may round vectors by now.
        self._drafter = Drafter(Kernels(1), shape, drafting)
        self._compare(inner, kernels, shape.embedding)
        self._drafter = Drafter(kernels, shape, drafting)

    def make_cache(self) -> PromptCache:
        return [KVCache() for _ in self._drafter.shape.layers]

    def __call__(
        self, tokens: mx.array, cache: PromptCache, states: mx.array | Reading | None = None
    ) -> mx.array:
        """The head's states [sequences, count, hidden] of tokens [sequences, count], from the model's states before
        them [sequences, count, state_size] or zeros. With a `Reading`, which has states for the tokens that are no
        padding, the drafts that follow them [sequences, most]."""
        if isinstance(states, Reading):
            return mx.array(self._run(np.asarray(tokens), cache, states.states, states.most))
        known = np.asarray(tokens)
        real = known != PADDING
        given = np.zeros((*known.shape, self.state_size), np.float32)
        if states is not None:
            given = np.asarray(states.astype(mx.float32))
        own = np.empty((int(real.sum()), self._drafter.shape.hidden), np.float32)
        self._run(known, cache, given[real], 0, own)
        return mx.array(padded_states(own, (known.shape[0], known.shape[1]), real))

    def _run(
        self,
        tokens: NDArray[Any],
        caches: Sequence[Any],
        states: NDArray[np.float32],
        most: int,
        own: NDArray[np.float32] | None = None,
    ) -> NDArray[np.int32]:
        # Blocks for the prefix cache may still be copied from memory that is written here.
        mx.synchronize()
        layers = [open_in_place(cache, self._token, (tokens.shape[0], tokens.shape[1])) for cache in caches]
        real = tokens != PADDING
        step = Step(
            starts=[start for part in layers[0] for start in part.starts],
            counts=real.sum(axis=1).tolist(),
            places=self._kept.of(layers),
        )
        drafts: NDArray[np.int32] = self._drafter.run(tokens[real], states, step, most, own=own)
        return drafts

    def _compare(self, inner: Any, kernels: Kernels, embedding: Matrix) -> None:
        """Compare the head with the module of mlx-vlm. Raises `OtherAnswer`."""
        tokens = mx.arange(TRIED)[None]
        states = mx.random.normal((1, TRIED, self.state_size), key=mx.random.key(0))
        found = self(tokens, self.make_cache(), states)
        inner._cache, inner._next_position = inner.make_cache(), 0
        bound = inner.embed_tokens
        inner.embed_tokens = lambda each: mx.array(kernels.rows(embedding, np.asarray(each)[0]))[None]
        with widened(inner):
            expected = inner._forward_tokens(tokens, states, mx.int32)
            mx.eval(expected)
        inner.embed_tokens, inner._cache = bound, []
        require_agreement("the draft head", "mlx-vlm", floats(found), floats(expected))


def _describe(inner: Any, embedding: Matrix) -> tuple[Shape, Drafting]:
    attention = inner.layers[0].self_attn
    describer = Describer(LLAMA, "", attention.head_dim)
    layers = tuple(describer.layer(index, layer, 0) for index, layer in enumerate(inner.layers))
    first = inner.layers[0]
    shape = Shape(
        embedding=embedding,
        final_norm=floats(inner.norm.weight),
        layers=layers,
        ropes=tuple(describer.ropes),
        heads=int(attention.n_heads),
        kv_heads=int(attention.n_kv_heads),
        head_dim=int(attention.head_dim),
        norm_eps=float(inner.norm.eps),
        attention_scale=float(attention.scale),
    )
    words = None
    if inner.d2t is not None:
        words = (np.arange(inner.draft_vocab_size) + np.asarray(inner.d2t)).astype(np.int32)
    drafting = Drafting(
        reduce=matrix_of(inner.fc),
        head=embedding if inner.lm_head is None else matrix_of(inner.lm_head),
        token_norm=floats(first.input_layernorm.weight),
        state_norm=floats(first.hidden_norm.weight),
        reduce_norm=None if inner.input_norm is None else floats(inner.input_norm.weight),
        words=words,
        normed_residual=bool(first.norm_before_residual),
    )
    return shape, drafting
