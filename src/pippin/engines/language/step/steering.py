"""Inputs of a step from outside the engine's own state: the time, the chunk's size, drawn tokens and decoders.

Everything else in a step follows from the steps before it. So ranks that compute one model together stay in step if
they take these inputs from rank 0: see `engines/language/ranks`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pippin.engines.language.job import LanguageJob
from pippin.engines.language.sampling.sampler import BatchSampler
from pippin.engines.language.step.decoder import SequenceDecoder
from pippin.engines.language.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Steering:
    """The inputs of an engine that runs alone."""

    now: Callable[[], float] = time.monotonic  # asked once, when a step begins
    rests: bool = True  # passes over prompts may end by the clock of this process, and go on in the next step
    # The prompt tokens to compute, of those that the scheduler would compute.
    budget: Callable[[int], int] = int
    decoder: Callable[[LanguageJob, int, Tokenizer], SequenceDecoder] = SequenceDecoder  # of a choice
    sampler: Callable[[Tokenizer, bool], BatchSampler] = BatchSampler  # the flag: the device sorts slowly


ALONE = Steering()
