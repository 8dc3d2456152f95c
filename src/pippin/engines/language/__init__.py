"""The engine of language models. Begin with `step/engine.py`: one step of the engine on one screen.

- `step/`: the engine itself: scheduling, the life of a sequence, prefill, batches, decoding and speculation.
- `ranks/`: the engine of a model that several processes compute together.
- `kv_cache/`: the KV caches of all running sequences, as the batches of the model need them.
- `prefix_cache/`: the KV caches of prompts that requests have in common, in memory and on disk.
- `sampling/`: penalties, filters and the draw of the next tokens.
- `prompt/`: from a request to a job, beside the step loop.
- `text/`: the tokenizer, and tokens back to text.
- `template/`: chat templates.
- `constraints/`: grammars for structured output.
- `vision/`: pictures, video and audio in prompts.
- `model/`: weights, LoRA adapters and the head.
- `diffusion/`: models that write a block of tokens at once: an engine of their own.

`job.py` is a prepared request, which goes from `prompt/` to `step/`; `loading.py` makes an engine of a model folder;
`warm_prompts.py` computes prompts when the server starts. Imports run one way: `text`, `template` and `kv_cache` lie
below `constraints`, `vision`, `sampling` and `prefix_cache`; these below `model` and `prompt`; and all of them below
`step`.

The two functions here import what they open: this package is imported before the accelerated BLAS may be loaded.
"""

from typing import TYPE_CHECKING

from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress

if TYPE_CHECKING:
    from pippin.engines.language.diffusion.engine import DiffusionEngine
    from pippin.engines.language.prompt.preparer import LanguagePreparer
    from pippin.engines.language.ranks.follower import Follower
    from pippin.engines.language.ranks.leader import LeadingEngine
    from pippin.engines.language.ranks.messages import RankLink
    from pippin.engines.language.step.engine import LanguageEngine


def open_preparer(spec: WorkerSpec) -> "LanguagePreparer":
    from pippin.engines.language.prompt import preparer

    return preparer.open_preparer(spec)


def open_engine(
    spec: WorkerSpec, preparer: "LanguagePreparer", progress: LoadProgress
) -> "LanguageEngine | DiffusionEngine":
    from pippin.engines.language import loading

    return loading.open_engine(spec, preparer, progress)


def open_rank(
    spec: WorkerSpec, preparer: "LanguagePreparer", progress: LoadProgress, link: "RankLink"
) -> "LeadingEngine | Follower":
    """As `open_engine`, of a model that several ranks compute together: an engine for rank 0, and what follows it."""
    from pippin.engines.language.ranks import opening

    return opening.open_rank(spec, preparer, progress, link)
