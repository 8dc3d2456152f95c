"""All media of a prompt as one medium, for families whose processor needs the whole prompt and whose language model
takes the result as embeddings of tokens.

mlx-vlm embeds such a prompt with all its media at once. The rows that depend on media are kept as the features of one
medium, and the prompt is computed in the engine's chunks and batches. A trial when the model is loaded finds which
tokens these are, and whether the logits are mlx-vlm's.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import numpy as np

from pippin.core.errors import ServerError
from pippin.engines.device import require_sound_device
from pippin.engines.language.kv_cache.agreement import FAILURES, difference, in_float32, tolerance
from pippin.engines.language.vision.media import JointTokens, WholePrompt
from pippin.engines.language.vision.model import VisionModel, embedded
from pippin.engines.language.vision.trial import compile_pass, logits_by_engine

log = logging.getLogger(__name__)


Evaluate = Callable[[WholePrompt], mx.array]
"""Returns the log-probabilities [vocabulary] that mlx-vlm gives after a prompt."""


def find_tokens(model: VisionModel, evaluate: Evaluate, samples: Sequence[WholePrompt]) -> JointTokens | None:
    """The tokens that features replace, or None if the engine would not compute these prompts as mlx-vlm does.

    The first two samples differ only in the content of a medium, the others in its size or number. Clears
    `model.bidirectional`: what the trial of single media found does not hold for joint ones.
    """
    model.bidirectional = frozenset()
    try:
        tokens = _differing(model, *samples[:2])
        if tokens is None or not all(
            _is_faithful(model, evaluate, tokens, samples[0], chosen) for chosen in samples[1:]
        ):
            return None
    except (*FAILURES, ServerError) as error:
        require_sound_device(error)
        log.info("its media can't be joined: %s: %s", type(error).__name__, error)
        return None
    finally:
        model.unused.restore()
    return tokens


def _differing(model: VisionModel, first: WholePrompt, second: WholePrompt) -> JointTokens | None:
    """The tokens whose embeddings differ between two prompts that are otherwise the same."""
    if first.ids.shape != second.ids.shape or (first.ids != second.ids).any():
        return None
    one, other = (embedded(model.inner, prompt)["inputs_embeds"][0] for prompt in (first, second))
    places = np.flatnonzero(np.array(mx.any(one != other, axis=-1))).tolist()
    ids, more = first.ids[0].tolist(), one.shape[0] - first.ids.shape[1]
    if not places or one.shape != other.shape or more < 0:
        return None
    if more == 0:
        return JointTokens(frozenset(ids[place] for place in places))
    marker = ids[places[0]]
    return JointTokens(frozenset({marker}), more + 1) if ids.count(marker) == 1 else None


def _is_faithful(
    model: VisionModel, evaluate: Evaluate, tokens: JointTokens, other: WholePrompt, chosen: WholePrompt
) -> bool:
    """Whether the engine gives what mlx-vlm gives for a prompt, also after another has left its state on the
    modules."""
    placed, media = tokens.place(chosen, "image", b"trial")
    if media.placed[0].positions[-1:] == (len(placed) - 1,):
        return False
    with in_float32(model):
        expected = evaluate(chosen)
        for left in (None, other):
            found = logits_by_engine(model, tuple(placed), media, before=partial(_leave, model, left))
            if not difference(found - mx.logsumexp(found), expected) < tolerance(found):
                return False
    compile_pass(model, tuple(placed), media)
    return True


def _leave(model: VisionModel, prompt: WholePrompt | None) -> None:
    """Leave on the modules the state that embedding another prompt leaves, or none."""
    model.unused.restore()
    if prompt is not None:
        mx.eval(embedded(model.inner, prompt)["inputs_embeds"])
