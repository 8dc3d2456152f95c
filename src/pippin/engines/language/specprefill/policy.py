"""Decides whose prompt is scored and how much of it is kept, by the options and by the request."""

import logging

import numpy as np
from numpy.typing import NDArray

from pippin.core.requests import GenerationRequest
from pippin.engines.language.specprefill.importance import DraftScorer
from pippin.engines.language.specprefill.selection import Selection, Share, choose

log = logging.getLogger(__name__)


class SpecPrefill:
    """Scores prompts with at least `threshold` unknown tokens, and those of requests that ask for it."""

    def __init__(self, scorer: DraftScorer, share: Share, threshold: int) -> None:
        self.scorer = scorer
        self._share = share
        self._threshold = threshold

    def wanted(self, request: GenerationRequest, unknown: int) -> bool:
        """Whether a prompt is scored before it is computed; the prefix cache lacks `unknown` of its tokens."""
        asked = request.specprefill.enabled
        if asked is False or self._share_of(request).keep >= 1:
            return False
        return asked is True or unknown >= self._threshold

    def choose(
        self, id: str, request: GenerationRequest, importance: NDArray[np.float32], known: int
    ) -> Selection:
        """The tokens of a request's prompt to compute, by their importance."""
        found = choose(importance, self._share_of(request), known)
        log.info("%s: SpecPrefill computes %d of %d tokens", id, found.kept, found.length)
        return found

    def _share_of(self, request: GenerationRequest) -> Share:
        asked = request.specprefill
        keep = self._share.keep if asked.keep is None else asked.keep
        return Share(keep, self._share.backbone if asked.backbone is None else asked.backbone)
