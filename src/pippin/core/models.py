"""Descriptions and statistics of a model, and what its worker is told at the start."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, get_args

from msgspec import Struct, field, structs

from pippin.core.errors import ErrorReport
from pippin.core.requests import Sampling

ModelKind = Literal[
    "language", "embeddings", "reranking", "decisions", "transcription", "speech", "images", "scripted"
]


class Capabilities(Struct, frozen=True, kw_only=True, omit_defaults=True):
    chat: bool = False  # has a chat template
    tools: bool = False
    reasoning: bool = False
    images: bool = False
    video: bool = False
    audio: bool = False
    infill: bool = False  # has fill-in-the-middle tokens
    embeddings: bool = False


class Companion(Struct, frozen=True):
    """A repository that a model needs beside its own. `files` are patterns of file names; the first pattern tells
    whether the repository is present."""

    repository: str
    files: tuple[str, ...]
    needed: bool = True  # False: the model loads without it and only refuses some requests
    missed_late: bool = False  # without it the model loads, then fails or produces noise when it speaks


Rewritten = Literal["thoughts", "openings of answers", "tools"]
"""What a chat template may change of earlier turns when a conversation goes on."""


class ModelInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model as clients and operators see it. The catalog fills it from files; a worker, which has read tokenizer and
    template, sends a more accurate one."""

    id: str
    kind: ModelKind
    path: str | None = None
    architecture: str | None = None  # config.json's `model_type`
    capabilities: Capabilities = field(default_factory=Capabilities)
    context_window: int | None = None  # tokens
    quantization: str | None = None  # for display: "4-bit, group 64"
    dtype: str | None = None
    size_bytes: int = 0  # of the weight files
    created: int = 0  # seconds since the epoch
    tool_format: str | None = None
    reasoning_format: str | None = None
    rewrites: tuple[Rewritten, ...] = ()  # of earlier turns, so that these are computed again from there on
    sampling: Sampling = field(default_factory=Sampling)  # from generation_config.json
    dimensions: int | None = None  # of embeddings
    companions: tuple[Companion, ...] = ()


class HubModel(Struct, frozen=True, kw_only=True):
    """A repository that a search on the hub found."""

    id: str
    downloads: int  # of the last month
    task: str | None  # in the hub's terms, such as `text-generation`


Purpose = Literal["code", "chat", "vision", "embed"]
PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)


class Suggestion(Struct, frozen=True, kw_only=True):
    """A model that fits this machine."""

    id: str
    stored_bytes: int  # to download
    needed_bytes: int  # in memory, with the context of one client
    tokens_per_second: float  # at most, of one client
    tools: bool
    why: str


RankBackend = Literal["ring", "jaccl", "nccl"]


class RankSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's place in a group of ranks, which compute one model together."""

    rank: int  # rank 0 leads: it takes the requests, schedules, and announces each step to the others
    size: int  # ranks of the group
    backend: RankBackend = "ring"  # of `mx.distributed`
    control: str = ""  # HOST:PORT where rank 0 listens for the others
    coordinator: str = ""  # HOST:PORT where the backends `jaccl` and `nccl` rendezvous
    hosts: tuple[str, ...] = ()  # HOST:PORT where each rank listens, for the backend `ring`
    secret: str = ""  # authenticates the ranks of a group to each other


class WorkerSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a worker process is told at its start. `options` is a `ModelOptions` as builtins."""

    info: ModelInfo
    options: dict[str, Any] = field(default_factory=dict)
    threads: int | None = None  # for the BLAS
    memory_bytes: int | None = None  # limit for weights and caches together
    expected_bytes: int = 0  # estimated footprint, of all ranks together
    log_level: str = "info"
    offline: bool = False  # the worker may not use the network
    rank: RankSpec | None = None  # None: the worker computes the model alone
    machine: str | None = None  # the other machine that the worker runs on; None: this one
    command: str | None = None  # starts the worker on that machine
    files: str | None = None  # `digest_of` the model's folder here; the folder there must match

    @property
    def title(self) -> str:
        """The name of the process in the log and in errors."""
        places = []
        if self.rank is not None:
            places.append(f"rank {self.rank.rank} of {self.rank.size}")
        if self.machine is not None:
            places.append(f"on {self.machine}")
        return f"{self.info.id!r} ({', '.join(places)})" if places else repr(self.info.id)


class RequestStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    phase: Literal["queued", "prefill", "generation"]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    max_tokens: int | None = None
    elapsed: float = 0.0  # seconds since submission
    time_to_first_token: float | None = None  # seconds
    tokens_per_second: float = 0.0


class CacheStats(Struct, frozen=True, kw_only=True, omit_defaults=True):
    hits: int = 0
    misses: int = 0
    hit_tokens: int = 0
    lookup_tokens: int = 0
    evictions: int = 0
    entries: int = 0  # blocks in the tree
    bytes: int = 0
    limit_bytes: int = 0
    disk_hits: int = 0
    disk_writes: int = 0
    disk_bytes: int = 0
    disk_limit_bytes: int = 0

    @property
    def hit_ratio(self) -> float:
        """Share of the prompt tokens looked up that were cached."""
        return self.hit_tokens / self.lookup_tokens if self.lookup_tokens else 0.0

    @property
    def utilization(self) -> float:
        """Share of the memory allowed that is in use."""
        return self.bytes / self.limit_bytes if self.limit_bytes else 0.0

    @classmethod
    def total(cls, caches: Iterable["CacheStats"]) -> "CacheStats":
        """The sums of several caches."""
        return cls(**summed(cls, list(caches)))


class EngineStats(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot of an engine, for status pages and metrics. Counters start at zero with each load."""

    running: int = 0
    waiting: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    batch_size: int = 0
    kv_bytes: int = 0  # of live rows
    kv_limit_bytes: int = 0
    longest_sequence: int = 0  # prompt and answer tokens that fit if the sequence were alone; 0: unbounded
    weight_bytes: int = 0
    active_bytes: int = 0  # of the array allocator
    peak_bytes: int = 0
    cached_bytes: int = 0
    agreement: str = ""  # how near batches are to what sequences give alone, as the trials at the load found
    draft_tokens: int = 0
    accepted_tokens: int = 0
    forced_tokens: int = 0  # of answers that have ended
    draft_seconds: float = 0.0  # spent proposing tokens, without the steps that verify them
    media_encoded: int = 0  # images, clips and recordings encoded by the model's towers
    media_reused: int = 0  # media whose features were still cached
    generation_tps: float = 0.0
    prompt_tps: float = 0.0
    cache: CacheStats = field(default_factory=CacheStats)
    requests: tuple[RequestStatus, ...] = ()

    @classmethod
    def total(cls, engines: Iterable["EngineStats"]) -> "EngineStats":
        """The sums of several engines, and the requests of all."""
        listed = list(engines)
        sums = summed(cls, listed)
        # Any of the engines may hold a sequence, so the bound is what fits in all of them.
        bounds = [each.longest_sequence for each in listed if each.longest_sequence]
        sums["longest_sequence"] = min(bounds, default=0)
        return cls(
            **sums,
            cache=CacheStats.total(each.cache for each in listed),
            requests=tuple(request for each in listed for request in each.requests),
        )


def summed(kind: type[Struct], listed: Sequence[Struct]) -> dict[str, Any]:
    """The sum of each field that is a number."""
    names = [each.name for each in structs.fields(kind) if each.type in (int, float)]
    return {name: sum(getattr(each, name) for each in listed) for name in names}


LoadState = Literal["unloaded", "loading", "loaded", "unloading", "failed"]


class ModelState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where one model stands in the pool. Times are seconds since the epoch."""

    id: str
    kind: ModelKind
    state: LoadState = "unloaded"
    stage: Literal["waiting", "starting", "weights"] | None = None  # of the load, while it runs
    progress: tuple[int, int, str] | None = None  # done, total and a description, while weights load
    pinned: bool = False
    active: int = 0  # requests that hold the model or wait for it
    last_used: float | None = None
    loaded_at: float | None = None
    load_seconds: float | None = None
    footprint: int = 0  # bytes of the budget: measured once loaded, estimated while loading, else 0
    pid: int | None = None
    restarts: int = 0  # after a worker's death, since the server started
    loads: int = 0  # successful ones
    evictions: int = 0  # to make room for another model
    error: ErrorReport | None = None  # why the last load or the last worker failed


class ImageDefaults(Struct, frozen=True):
    """Steps and guidance for a request that leaves them out; `guidance` is None for a model that takes none."""

    steps: int
    guidance: float | None


class FolderDefaults(Struct, frozen=True):
    """The defaults of one image model; None for a task that it cannot do."""

    generate: ImageDefaults | None
    edit: ImageDefaults | None
