"""The engine of language models. Begin with `step/engine.py`: one step of the engine on one screen.

- `step/`: the engine itself: scheduling, the life of a sequence, prefill, batches, decoding and speculation.
- `ranks/`: the engine of a model that several processes compute together.
- `kernels/`: models whose layers the kernels for CPUs compute.
- `kv_cache/`: the KV caches of all running sequences, as the batches of the model need them.
- `prefix_cache/`: the KV caches of prompt prefixes that requests share, in memory and on disk.
- `sampling/`: penalties, filters and the draw of the next tokens.
- `prompt/`: turns a request into a job, outside the step loop.
- `text/`: the tokenizer, and tokens back to text.
- `template/`: chat templates.
- `constraints/`: grammars for structured output.
- `vision/`: pictures, video and audio in prompts.
- `model/`: weights, LoRA adapters and the head.
- `library/`: models that mlx-vlm's own loops run, one request at a time, with an engine of their own.
- `loading/`: makes an engine from a model folder.

`job.py` holds a prepared request, which `prompt/` makes and `step/` runs; `recent.py` keeps what was used last;
`warm_prompts.py` computes prompts when the server starts. Imports run one way: `text`, `template` and `kv_cache` lie
below `constraints`, `vision`, `sampling` and `prefix_cache`; these below `model` and `prompt`; and all of them below
`step`.

The functions here import inside their bodies: this package is imported before the accelerated BLAS may be loaded.
"""

from typing import TYPE_CHECKING

from pippin.core.models import WorkerSpec
from pippin.engines.base import LoadProgress
from pippin.engines.language.bare import import_bare

if TYPE_CHECKING:
    from pippin.engines.language.library.engine import LibraryEngine
    from pippin.engines.language.prompt.preparer import LanguagePreparer
    from pippin.engines.language.ranks.follower import Follower
    from pippin.engines.language.ranks.leader import LeadingEngine
    from pippin.engines.language.ranks.messages import RankLink
    from pippin.engines.language.step.engine import LanguageEngine

# Its `__init__` imports what converts and generates, and transformers.
import_bare("mlx_lm")


def open_preparer(spec: WorkerSpec) -> "LanguagePreparer":
    from pippin.engines.language.prompt import preparer

    return preparer.open_preparer(spec)


def open_engine(
    spec: WorkerSpec, preparer: "LanguagePreparer", progress: LoadProgress
) -> "LanguageEngine | LibraryEngine":
    from pippin.engines.language.loading import engine

    return engine.open_engine(spec, preparer, progress)


def open_rank(
    spec: WorkerSpec, preparer: "LanguagePreparer", progress: LoadProgress, link: "RankLink"
) -> "LeadingEngine | Follower":
    """Like `open_engine`, for a model that several ranks compute: rank 0 gets an engine, the other ranks a follower."""
    from pippin.engines.language.ranks import opening

    return opening.open_rank(spec, preparer, progress, link)
