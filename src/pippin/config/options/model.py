"""The options of one model: of its worker, and of the pool."""

from typing import Annotated, Any, Final, Literal

from msgspec import Struct, field

from pippin.config.options.marks import AboveZero, Natural, Positive, about, default_of
from pippin.core import parameters as p
from pippin.core.models import RankBackend
from pippin.core.requests import JsonSpacing, LoopGuard, OverflowPolicy, Sampling

KvBits = Literal[2, 3, 4, 5, 6, 8]
WeightsType = Literal["auto", "float32", "float16", "bfloat16", "stored"]
CpuActivations = Literal["float32", "int8"]
UnreadableMedia = Literal["auto", "describe", "refuse"]


class ModelOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Each field is an option of `pippin serve` (underscores become dashes), of the YAML file, and of
    `PIPPIN_*` variables. A default for all models may be overridden per model in the YAML file."""

    fallbacks: Sampling = field(default_factory=Sampling)
    """A profile's sampling defaults, which rank below the checkpoint's own."""

    # How weights run
    dtype: Annotated[WeightsType, about("Type that weights run in; `auto` lets the device decide.")] = "auto"
    exact: Annotated[
        bool,
        about(
            "The same text alone and in any batch, on GPUs too: computes in float32, and refuses what "
            "rounds (docs/sampling.md has what it costs)."
        ),
    ] = False
    accelerated_blas: Annotated[
        bool, about("On the CPU of Linux, put MKL, if installed, or OpenBLAS in front of MLX's own BLAS.")
    ] = True
    cpu_kernels: Annotated[
        Literal["auto", "off"],
        about(
            "On a CPU, compute weights as they are stored, by the kernels of the package pippin-kernels, "
            "where it is installed (the log of a load says for which parts); `off` makes them float32 for MLX."
        ),
    ] = "auto"
    cpu_activations: Annotated[
        CpuActivations,
        about(
            "What the kernels for CPUs multiply packed weights with: `float32` is exact; `int8` rounds "
            "each 32 numbers of a vector to 8 bits, which is quicker and changes answers (docs/measurements/cpu.md)."
        ),
    ] = "float32"
    trust_remote_code: Annotated[
        bool, about("Run Python code that a model folder brings. Off unless you trust it.")
    ] = False
    adapter_path: Annotated[str | None, about("LoRA adapter to serve the model with.")] = None
    adapters: Annotated[
        dict[str, str], about("Adapters that requests may name: name to folder.", flag="--adapter")
    ] = field(default_factory=dict)

    # Prompt and window
    context_length: Annotated[
        Positive | None, about("Lower the model's context window to this many tokens.")
    ] = None
    overflow: Annotated[
        OverflowPolicy, about("What to do with a conversation that does not fit the window.", hot=True)
    ] = "error"
    chat_template_file: Annotated[
        str | None, about("Jinja file to use instead of the model's chat template.")
    ] = None
    chat_template_kwargs: Annotated[dict[str, Any], about("Variables for the chat template, as JSON.")] = (
        field(default_factory=dict)
    )
    tool_call_parser: Annotated[
        str | None, about("Format of tool calls; detected from the template if not set.")
    ] = None
    reasoning_parser: Annotated[
        str | None, about("Format of reasoning; detected from the template if not set.")
    ] = None
    enable_thinking: Annotated[
        bool | None, about("Think by default; not set leaves it to the template.", hot=True)
    ] = None
    thinking_budget: Annotated[
        Natural | None, about("Most tokens of reasoning before the end is forced.", hot=True)
    ] = None
    thinking_start_token: Annotated[str | None, about("Text that opens reasoning.", hot=True)] = None
    thinking_end_token: Annotated[str | None, about("Text that closes reasoning.", hot=True)] = None

    # Limits and sampling defaults
    max_tokens: Annotated[
        Positive | None, about("Default limit of new tokens; not set is up to the window.", hot=True)
    ] = None
    max_request_tokens: Annotated[
        Positive | None, about("Most new tokens that a request may ask for.", hot=True)
    ] = None
    loop_guard: Annotated[
        LoopGuard, about("What to do with an answer that repeats itself without end.", hot=True)
    ] = "stop"
    temperature: Annotated[float, default_of(p.TEMPERATURE)] | None = None
    top_p: Annotated[float, default_of(p.TOP_P)] | None = None
    top_k: Annotated[int, default_of(p.TOP_K)] | None = None
    min_p: Annotated[float, default_of(p.MIN_P)] | None = None
    repetition_penalty: Annotated[float, default_of(p.REPETITION_PENALTY)] | None = None
    repetition_context_size: Annotated[int, default_of(p.REPETITION_CONTEXT)] | None = None
    presence_penalty: Annotated[float, default_of(p.PRESENCE_PENALTY)] | None = None
    frequency_penalty: Annotated[float, default_of(p.FREQUENCY_PENALTY)] | None = None
    xtc_probability: Annotated[float, default_of(p.XTC_PROBABILITY)] | None = None
    xtc_threshold: Annotated[float, default_of(p.XTC_THRESHOLD)] | None = None
    seed: Annotated[int, default_of(p.SEED)] | None = None

    # Scheduling
    max_num_seqs: Annotated[Positive, about("Most requests that decode together.")] = 64
    prefill_step_size: Annotated[Positive, about("Most prompt tokens in one step.")] = 2048
    target_gap_ms: Annotated[
        AboveZero | None,
        about(
            "Gap between tokens that prompt chunks are sized to keep, in ms. Not set is 100, on a CPU 30.",
            hot=True,
        ),
    ] = None
    queue_size: Annotated[Positive, about("Most requests waiting; beyond it 503.", hot=True)] = 512
    queue_timeout: Annotated[
        AboveZero | None, about("Seconds that a request may wait in the queue.", hot=True)
    ] = None
    stream_interval: Annotated[Positive, about("Tokens to gather before streaming.", hot=True)] = 1
    memory_bytes: Annotated[Positive | None, about("Most bytes for weights and caches of this model.")] = None

    wired_limit_gb: Annotated[
        AboveZero | None,
        about(
            "Memory that a model wires on Metal, in GB, within its share. Not set wires the "
            "weights where they take half of the GPU's memory and leave 35 % of the machine's: more made macOS panic."
        ),
    ] = None

    # Prefix cache
    prefix_cache: Annotated[bool, about("Keep computed prompts for later requests.")] = True
    cache_block_tokens: Annotated[Positive, about("Tokens in a block of the cache, at most.")] = 16
    cache_memory_mb: Annotated[Natural | None, about("Most memory for the prefix cache, in MiB.")] = None
    cache_memory_percent: Annotated[
        float, about("Share of free memory for the prefix cache.", gt=0, le=1)
    ] = 0.2
    prompt_cache_size: Annotated[Positive | None, about("Most conversations in the prefix cache.")] = None
    cache_dir: Annotated[str | None, about("Folder of the prefix cache's disk tier.")] = None
    cache_disk_max_gb: Annotated[AboveZero, about("Most disk for the prefix cache, in GB.")] = 10.0
    warm_prompts: Annotated[str | None, about("JSON file of prompts to compute at start and keep.")] = None

    # KV quantisation and speculation
    kv_bits: Annotated[KvBits | None, about("Bits of the KV cache's full-attention layers.")] = None
    kv_key_bits: Annotated[KvBits | None, about("Bits of the keys, where they differ from `kv_bits`.")] = None
    kv_value_bits: Annotated[
        KvBits | None, about("Bits of the values, where they differ from `kv_bits`.")
    ] = None
    kv_group_size: Annotated[Literal[32, 64, 128], about("Values of the KV cache that share a scale.")] = 64
    draft_model_path: Annotated[
        str | None,
        about("What proposes tokens: a smaller model, or a draft head (EAGLE-3, multi-token prediction)."),
    ] = None
    draft_kind: Annotated[
        Literal["dflash", "eagle3", "mtp"] | None,
        about(
            "The kind of draft head that `draft_model_path` must be; not set takes what its configuration "
            "says."
        ),
    ] = None
    mtp: Annotated[bool, about("Propose tokens by the prediction head in the model's own checkpoint.")] = (
        False
    )
    num_draft_tokens: Annotated[
        Positive,
        about("Most tokens proposed at a time; how many are, and whether any, follows what was measured."),
    ] = 8
    prompt_lookup: Annotated[bool, about("Propose tokens by looking up the text so far.")] = False

    json_spacing: Annotated[
        JsonSpacing,
        about(
            "White space in JSON that a schema asks for: as the model likes, a space after each colon and "
            "comma, or none. Where it is fixed, fewer tokens are computed one by one."
        ),
    ] = "any"

    # Media
    min_pixels: Annotated[Positive | None, about("Smallest area of a picture, in pixels.")] = None
    max_pixels: Annotated[Positive | None, about("Largest area of a picture, in pixels.")] = None
    vision_cache_size: Annotated[Natural, about("Images whose features are kept.")] = 20
    unreadable_media: Annotated[
        UnreadableMedia,
        about(
            "Pictures, sound, videos and documents that the model can't take: `refuse`, or `describe` by "
            "a line of text; `auto` refuses those of the user's newest message and describes others."
        ),
    ] = "auto"

    # Other kinds
    embedding_max_length: Annotated[Positive | None, about("Most tokens of an embedding input.")] = None
    embedding_overflow: Annotated[
        Literal["error", "truncate"], about("What to do with embedding inputs that are too long.")
    ] = "error"

    # Life in the pool
    pinned: Annotated[bool, about("Never unload this model to make room.", hot=True)] = False
    idle_timeout: (
        Annotated[float, about("Unload after this many idle seconds; 0 is at once.", hot=True, ge=0)] | None
    ) = None
    replicas: Annotated[
        int,
        about(
            "Processes that serve the model side by side, each with weights and caches of its own. "
            "A request goes to the one that has computed most of its prompt.",
            ge=1,
            le=64,
        ),
    ] = 1
    cluster: Annotated[
        str | None,
        about(
            "The Ray cluster that runs the replicas, HOST:PORT, or `auto` for the one that this machine "
            "has joined (`pippin join`), or else for one of this machine alone. Ray places each where its memory is "
            "free."
        ),
    ] = None
    machine_command: Annotated[
        str,
        about(
            "What starts a worker on another machine. Its input and output are the worker's; {machine}, "
            "{model} and {path} stand for the address, the model's name and its folder here."
        ),
    ] = "ssh -T -o BatchMode=yes {machine} pippin worker {model} {path}"
    load_timeout: Annotated[AboveZero, about("Seconds that loading may take.", hot=True)] = 1800.0

    # Ranks
    ranks: Annotated[
        int,
        about(
            "Processes that hold a part of the model each and compute it together, for a model that is "
            "too large for one; with `cluster` on machines of that (docs/scaling.md).",
            ge=1,
            le=64,
        ),
    ] = 1
    machines: Annotated[
        tuple[str, ...],
        about(
            "Where the ranks run, one address for each: first this machine's own, at which the others "
            "reach it, then those of others, where `machine_command` starts them."
        ),
    ] = ()
    rank_backend: Annotated[
        RankBackend, about("How MLX's ranks talk: `ring` over TCP. `jaccl` and `nccl` were never tried here.")
    ] = "ring"
    rank_network: Annotated[
        Literal["private", "any"],
        about(
            "Which addresses ranks may have. What they send each other is not encrypted, so `private` "
            "refuses those of the public internet."
        ),
    ] = "private"


LOOPBACK: Final = ("127.0.0.1", "localhost")


def machines_of(options: ModelOptions) -> tuple[str, ...]:
    """The address of each rank's machine; a single address if the model is not split."""
    return options.machines or LOOPBACK[:1] * options.ranks


def ranks_here(options: ModelOptions) -> int:
    """Number of ranks on this machine."""
    machines = machines_of(options)
    return sum(is_here(each, machines[0]) for each in machines)


def is_here(machine: str, first: str) -> bool:
    """Whether `machine` is this one; `first` is another address of this machine."""
    return machine == first or machine in LOOPBACK


def replicas_here(options: ModelOptions) -> int:
    """The replicas on this machine. Those in a cluster take no memory that is planned here."""
    return 0 if options.cluster is not None else options.replicas


def asked_type(options: ModelOptions) -> WeightsType:
    """The type that weights are to run in."""
    return "float32" if options.exact else options.dtype


def cache_bits(options: ModelOptions) -> tuple[int | None, int | None]:
    """Bits of keys and of values in the KV cache; None for what is not quantised."""
    return options.kv_key_bits or options.kv_bits, options.kv_value_bits or options.kv_bits


def shared_out(free: int, options: ModelOptions) -> tuple[int, int]:
    """Divides the bytes that weights leave: those for running sequences, and those for the prefix cache."""
    if not options.prefix_cache:
        return free, 0
    wanted = options.cache_memory_mb
    prefixes = int(free * options.cache_memory_percent) if wanted is None else wanted * 2**20
    prefixes = min(prefixes, free // 2 if wanted is None else free)
    return max(free - prefixes, free // 8), prefixes
