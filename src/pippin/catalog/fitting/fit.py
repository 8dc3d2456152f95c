"""Adds up the memory of a model and its clients, and compares it with the memory that models may use.

The facts about a model are read without its weights, from a folder on this machine or a repository on the hub.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from pippin.catalog.footprint import BYTES, bytes_of_arrays, context_bytes, footprint
from pippin.catalog.info import context_window, quantization
from pippin.catalog.kinds import kind_of
from pippin.catalog.names import is_repository
from pippin.config.accelerator import accelerator
from pippin.config.options.model import ModelOptions, asked_type
from pippin.core.errors import ServerError
from pippin.core.published import object_in
from pippin.core.safetensors import StoredArray

if TYPE_CHECKING:
    from pippin.catalog import Catalog


SMALL_FILES: Final = (
    "config.json",
    "tokenizer_config.json",
    "model_index.json",
    "config_sentence_transformers.json",
)


@dataclass(frozen=True)
class Source:
    """The facts about a model that determine its size. Sizes are in bytes."""

    id: str
    here: bool
    kind: str
    config: dict[str, Any]
    weights: str  # their quantisation or dtype, for display
    stored: int  # as downloaded
    loaded: int  # weights and process in memory
    window: int | None
    options: ModelOptions


def read_source(catalog: "Catalog", name: str, defaults: ModelOptions) -> Source:
    """A model on this machine, else a repository on the hub. Raises `ServerError`."""
    try:
        info = catalog.resolve(name, by_operator=True)
    except ServerError as error:
        if error.report.kind != "model_not_found" or not (is_repository(name) and catalog.can_be_had(name)):
            raise
        return _remote(name, defaults)
    if info.path is None or info.kind == "scripted":
        raise ServerError("invalid_request", f"{info.id} is a script and takes next to no memory.")
    options = catalog.options_for(info)
    return Source(
        id=info.id,
        here=True,
        kind=info.kind,
        config=object_in(Path(info.path) / "config.json"),
        weights=info.quantization or info.dtype or "-",
        stored=info.size_bytes,
        loaded=footprint(info, options),
        window=info.context_window,
        options=options,
    )


def _remote(repository: str, options: ModelOptions) -> Source:
    """A repository on the hub; no weights are downloaded. Raises `ServerError`."""
    from huggingface_hub import HfApi

    api = HfApi()
    with _hub_in_words(repository), TemporaryDirectory() as name:
        folder = Path(name)
        for file in SMALL_FILES:
            if api.file_exists(repository, file):
                api.hf_hub_download(repository, file, local_dir=folder)
        metadata = api.get_safetensors_metadata(repository)
        config = object_in(folder / "config.json")
        kind = kind_of(folder, repository, config) or "language"
        window = context_window(folder, kind, config, object_in(folder / "tokenizer_config.json"))
    arrays = {
        name: StoredArray(array.dtype, tuple(array.shape), (0, 0))
        for file in metadata.files_metadata.values()
        for name, array in file.tensors.items()
    }
    return Source(
        id=repository,
        here=False,
        kind=kind,
        config=config,
        weights=quantization(config) or config.get("torch_dtype") or config.get("dtype") or "-",
        stored=sum(math.prod(array.shape) * BYTES.get(array.dtype, 1) for array in arrays.values()),
        loaded=bytes_of_arrays(arrays.items(), config, options, kind),
        window=window,
        options=options,
    )


@contextmanager
def _hub_in_words(repository: str) -> Iterator[None]:
    """Turns exceptions of the hub's client into `ServerError` with advice."""
    from huggingface_hub.errors import HfHubHTTPError, NotASafetensorsRepoError, SafetensorsParsingError

    try:
        yield
    except NotASafetensorsRepoError:
        raise ServerError(
            "unsupported", f"{repository} holds no safetensors weights. `pippin search` finds MLX models."
        ) from None
    except SafetensorsParsingError as error:
        raise ServerError("load_failed", f"The weights of {repository} cannot be read: {error}.") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        raise ServerError(
            "model_not_found",
            f"The hub answered {status} when asked for {repository}: there is none, or it needs a token in HF_TOKEN. "
            "`pippin search` finds models.",
        ) from None
    except Exception as error:
        # The client's HTTP library, and so the type of its errors, depends on its version.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("http"):
            raise
        raise ServerError(
            "load_failed", "The hub cannot be reached. `pippin list` shows what is here."
        ) from None


USUAL_WINDOW: Final = 8192  # tokens, for models that do not state a window
CAPACITY_STEP: Final = 256  # tokens by which the memory of a sequence grows


@dataclass(frozen=True)
class Fit:
    """The memory that a model needs, in bytes, and whether it is available."""

    source: Source
    context: int
    clients: int
    budget: int
    context_bytes: int | None = None  # of one client; None if unknown
    longest: int = 0  # tokens that all clients can have at once; 0 if not even the shortest fits

    @property
    def needed(self) -> int:
        return self.source.loaded + self.clients * (self.context_bytes or 0)

    @property
    def fits(self) -> bool:
        return self.needed <= self.budget


def measure(source: Source, context: int | None, clients: int, budget: int) -> Fit:
    """Measure a model by what its configuration says."""
    window = source.window or USUAL_WINDOW
    context = min(context or min(window, USUAL_WINDOW), window)
    width = value_bytes(source.options, source.config)

    def needed(steps: int) -> int | None:
        return context_bytes(source.config, steps * CAPACITY_STEP, width, source.options)

    steps = window // CAPACITY_STEP
    one = needed(-(-context // CAPACITY_STEP)) if source.kind == "language" else None
    if one is None:
        return Fit(source, context, clients, budget)
    left = max(0, sequence_memory(budget - source.loaded, source.options))
    fitting = bisect_right(range(1, steps + 1), left, key=lambda step: clients * (needed(step) or 0))
    longest = window if fitting == steps else fitting * CAPACITY_STEP
    return Fit(source, context, clients, budget, one, longest)


def sequence_memory(free: int, options: ModelOptions) -> int:
    """Bytes that the weights leave for running sequences, less the prefix cache's share, which is reclaimed first."""
    if not options.prefix_cache:
        return free
    wanted = options.cache_memory_mb
    prefixes = min(int(free * options.cache_memory_percent), free // 2) if wanted is None else wanted * 2**20
    return max(free - prefixes, free // 8)


def value_bytes(options: ModelOptions, config: dict[str, Any]) -> int:
    """Bytes of a number of a key or value."""
    asked = asked_type(options)
    if asked == "auto" and accelerator() == "cpu":
        return 4
    stored = asked in ("auto", "stored")
    named = (config.get("dtype") or config.get("torch_dtype")) if stored else asked
    return 4 if str(named).endswith("float32") else 2
