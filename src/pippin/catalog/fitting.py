"""Which models fit this machine: adds up the memory of a model and its clients, compares it with the memory that models
may use, and picks from the list that ships with the package, `recommended.json`.

The facts about a model are read without its weights, from a folder on this machine or a repository on the hub.
"""

import math
import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from pippin.catalog.download import refused
from pippin.catalog.footprint import (
    BYTES,
    IN_KERNELS,
    bytes_of_arrays,
    context_bytes,
    footprint,
    process_bytes,
    runs_on_kernels,
)
from pippin.catalog.info import context_window, quantization
from pippin.catalog.kinds import kind_of
from pippin.catalog.names import is_repository
from pippin.config.accelerator import accelerator
from pippin.config.options.model import ModelOptions, asked_type, shared_out
from pippin.core.decoding import from_json
from pippin.core.errors import ServerError
from pippin.core.models import HubModel, ModelKind, Purpose, Suggestion
from pippin.core.published import object_in
from pippin.core.safetensors import StoredArray

if TYPE_CHECKING:
    from pippin.catalog import Catalog

MLX: Final = "mlx"  # the hub's tag for models with MLX weights
SEARCH_SECONDS: Final = 30.0
SMALL_FILES: Final = (
    "config.json",
    "tokenizer_config.json",
    "model_index.json",
    "config_sentence_transformers.json",
)


class Source(Struct, frozen=True):
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


class _Found(Struct, frozen=True):
    """The fields that are read of the hub's answer to a search, for each model."""

    id: str
    downloads: int | None = None
    pipeline_tag: str | None = None


def search_hub(words: str, *, limit: int, mlx_only: bool) -> list[HubModel]:
    """The most downloaded models whose names contain these words. Raises `ServerError` if the hub does not answer."""
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session

    asked = {"search": words, "sort": "downloads", "direction": "-1", "limit": str(limit)}
    asked |= {"filter": MLX} if mlx_only else {}
    address = f"{constants.ENDPOINT}/api/models"
    with _hub_in_words(f"models like {words!r}"):
        # Not by the client's own search, which asks a hub that fails again for half a minute.
        reply = get_session().get(address, params=asked, headers=build_hf_headers(), timeout=SEARCH_SECONDS)
        if reply.is_error:
            message = f"The hub answered {reply.status_code}. Try again in a while. `pippin list` shows what is here."
            raise ServerError("load_failed", message)
        found = from_json(reply.content, list[_Found])
    return [HubModel(id=each.id, downloads=each.downloads or 0, task=each.pipeline_tag) for each in found]


@contextmanager
def _hub_in_words(asked: str) -> Iterator[None]:
    """Turns exceptions of the hub's client into `ServerError` with advice. `asked`: what the hub is asked for."""
    # The client's HTTP library, and so the type of its errors, depends on its version; it names the type itself.
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HTTPError,
        NotASafetensorsRepoError,
        SafetensorsParsingError,
    )

    try:
        yield
    except NotASafetensorsRepoError:
        raise ServerError(
            "unsupported", f"{asked} holds no safetensors weights. `pippin search` finds MLX models."
        ) from None
    except SafetensorsParsingError as error:
        raise ServerError("load_failed", f"The weights of {asked} cannot be read: {error}.") from None
    except HfHubHTTPError as error:
        found = refused(error.response.status_code, error.response.headers, asked)
        raise ServerError(found.kind, found.message) from None
    except (HTTPError, OSError, msgspec.DecodeError):
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
    left = max(0, shared_out(budget - source.loaded, source.options)[0])
    fitting = bisect_right(range(1, steps + 1), left, key=lambda step: clients * (needed(step) or 0))
    longest = window if fitting == steps else fitting * CAPACITY_STEP
    return Fit(source, context, clients, budget, one, longest)


def value_bytes(options: ModelOptions, config: dict[str, Any]) -> int:
    """Bytes of a number of a key or value."""
    asked = asked_type(options)
    if asked == "auto" and accelerator() == "cpu":
        return 4
    named = config.get("dtype") or config.get("torch_dtype") if asked in ("auto", "stored") else asked
    return 4 if str(named).endswith("float32") else 2


MOST: Final = 5  # suggestions
LISTED: Final = "November 2026"
"""When the list was last reviewed. Each name and configuration was then found in several public repositories; sizes
are those of MLX's modules of these configurations."""

QUICK: Final = 4.0  # tokens a second, about as many as people read
READ: Final = 256 << 20  # bytes, more than caches hold


class Recommended(Struct, frozen=True, kw_only=True, rename={"purposes": "for"}):
    """An entry of the list."""

    id: str
    purposes: tuple[Purpose, ...]  # the main purpose comes first
    tools: bool
    why: str
    stored: int  # bytes of its weights as downloaded
    weights: int  # their number; a table that is stored twice counts twice
    active: float = 1.0  # the share of the weights that a token is computed with
    config: dict[str, Any]  # what its config.json says of sizes

    def needed(self, *, on_cpu: bool) -> int:
        """Bytes of the weights, the process, and one client's context if the model keeps one, as `pippin fit` counts.

        On a CPU, the kernels use some models as stored, and others become float32; keys and values are float32.
        """
        embeds = self.purposes[0] == "embed"
        kind: ModelKind = "embeddings" if embeds else "language"
        width = 4 if on_cpu else 2
        context = 0 if embeds else context_bytes(self.config, USUAL_WINDOW, width, ModelOptions()) or 0
        return process_bytes(self.config, kind) + self._weights(kind, on_cpu=on_cpu) + context

    def _weights(self, kind: ModelKind, *, on_cpu: bool) -> int:
        if not on_cpu:
            return self.stored
        packed = runs_on_kernels(self.config, ModelOptions(), kind)
        return int(self.stored * IN_KERNELS) if packed else self.weights * 4

    def speed(self, bandwidth: float, *, on_cpu: bool) -> float:
        """Tokens a second for one client, where reading the weights is all that takes time."""
        return bandwidth / (self._weights("language", on_cpu=on_cpu) * self.active)


def recommended() -> list[Recommended]:
    text = Path(__file__).with_name("recommended.json").read_bytes()
    return from_json(text, list[Recommended])


def pick(
    listed: list[Recommended], purpose: Purpose, memory: int, *, on_cpu: bool, bandwidth: float = math.inf
) -> list[Recommended]:
    """The models for a purpose that fit into `memory` bytes: first those that are quick enough and made for it, the
    largest first."""
    fitting = [each for each in listed if purpose in each.purposes and each.needed(on_cpu=on_cpu) <= memory]

    def rank(each: Recommended) -> tuple[bool, bool, int]:
        return each.speed(bandwidth, on_cpu=on_cpu) < QUICK, each.purposes[0] != purpose, -each.stored

    return sorted(fitting, key=rank)


def bandwidth() -> float:
    """Bytes of memory that the cores read in a second, tried for some hundredths of one; a GPU reads no fewer."""
    import numpy as np

    block = np.ones(READ // 8)
    with ThreadPoolExecutor() as pool:
        begin = time.perf_counter()
        list(pool.map(np.sum, np.array_split(block, os.cpu_count() or 1)))
        return float(block.nbytes / (time.perf_counter() - begin))


def suited(purpose: Purpose, memory: int) -> list[Suggestion]:
    """The first few of those that `pick` gives for this machine's device and the bandwidth of its memory."""
    on_cpu, fast = accelerator() == "cpu", bandwidth()
    return [
        Suggestion(
            id=each.id,
            stored_bytes=each.stored,
            needed_bytes=each.needed(on_cpu=on_cpu),
            tokens_per_second=round(each.speed(fast, on_cpu=on_cpu), 1),
            tools=each.tools,
            why=each.why,
        )
        for each in pick(recommended(), purpose, memory, on_cpu=on_cpu, bandwidth=fast)[:MOST]
    ]
