"""What is asked of a load: which model, under which options, on which device."""

from pathlib import Path

import mlx.nn as nn
from msgspec import Struct

from pippin.config.options.model import ModelOptions
from pippin.engines.base import LoadProgress
from pippin.engines.device import DevicePlan
from pippin.engines.language.text.tokenizer import Tokenizer


class Asked(Struct, frozen=True):
    """A loaded model, and what its engine is opened by."""

    model: nn.Module
    tokenizer: Tokenizer
    options: ModelOptions
    plan: DevicePlan
    folder: Path | None = None  # of the model; without one nothing is kept on the disk
    # With which the kernels for CPUs compute what drafts; None if they do not.
    kernel_threads: int | None = None
    progress: LoadProgress = lambda done, total, units: None
