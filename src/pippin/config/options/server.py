"""The options of the server itself: address, access, limits, where models are found."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from pippin.config.options.marks import HOT, flag
from pippin.config.options.model import ModelOptions
from pippin.core.tasks import FileFormat

ContentionPolicy = Literal["wait", "fail", "preempt", "wait_then_fail", "wait_then_preempt"]
McpOffer = Literal["asked", "always"]
Natural = Annotated[int, Meta(ge=0)]


class ModelEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that the operator named: on the command line or in the YAML file."""

    path: str  # folder, repository id, alias or catalog id
    name: str | None = None  # served name; the catalog's id if not set
    kind: str | None = None
    preload: bool = True
    listed: bool = True  # False: known to a profile, and not listed before it is on the disk
    options: ModelOptions = field(default_factory=ModelOptions)  # complete: `model_defaults` and the entry's
    given: tuple[str, ...] = ()  # names of the options that the entry sets, even to the default value

    @property
    def called(self) -> str:
        """The name under which the catalog finds the model."""
        return self.name or self.path

    def is_of(self, id: str) -> bool:
        """Whether a model with this id is the one that the operator named; the id of a folder is its last part."""
        return id in (self.name, self.path) or (self.name is None and id == Path(self.path).name)


class ServerOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    # Address
    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Port to listen on; 0 picks one.")] = 8000
    unix_socket: Annotated[
        str | None, Meta(description="File to listen at too, as a Unix socket that this user alone can use.")
    ] = None
    restart: Annotated[
        bool, Meta(description="Start the server's process again when it dies; what is stored goes on.")
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe line to log.", extra=HOT)
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="Form of the log.")] = "text"
    log_file: Annotated[str | None, Meta(description="File to log to, beside the terminal.")] = None

    # Models
    models: Annotated[tuple[ModelEntry, ...], Meta(description="Models to serve.")] = ()
    model_defaults: ModelOptions = field(default_factory=ModelOptions)
    model_dirs: Annotated[
        tuple[str, ...], Meta(description="More folders to find models in.", extra=flag("--model-dir"))
    ] = ()
    model_paths: Annotated[
        tuple[str, ...],
        Meta(
            description="Folders inside which requests may name a model by its path.",
            extra=flag("--model-root", hot=True),
        ),
    ] = ()
    aliases: Annotated[
        dict[str, str],
        Meta(description="Short names of models: name to model.", extra=flag("--alias", hot=True)),
    ] = field(default_factory=dict)
    claude_model: Annotated[
        str | None, Meta(description="Model that answers for any claude-* name.", extra=HOT)
    ] = None
    list_claude_names: Annotated[
        bool,
        Meta(
            description="List language models under names of Anthropic's models too, for programs that take no others.",
            extra=HOT,
        ),
    ] = False
    any_model_name: Annotated[
        bool,
        Meta(
            description="Let the model answer whatever name a request has, where one alone is served.",
            extra=HOT,
        ),
    ] = False
    served_only: Annotated[
        bool | None,
        Meta(
            description="Where models are named at the start, serve those alone and answer 404 for other names; "
            "without it, that is done where callers without a key can reach the server.",
            extra=HOT,
        ),
    ] = None
    offline: Annotated[bool, Meta(description="Never use the network.")] = False
    allow_downloads: Annotated[
        bool | None,
        Meta(
            description="Let requests download models; not set allows it on loopback, "
            "and elsewhere with `allow_unauthenticated`.",
            extra=HOT,
        ),
    ] = None
    download_timeout: Annotated[
        float, Meta(gt=0, description="Seconds that a download may go without data.", extra=HOT)
    ] = 300.0
    download_retries: Annotated[Natural, Meta(description="Tries after a failed download.", extra=HOT)] = 3

    # Memory and the pool
    max_models: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Most models in memory.", extra=HOT)
    ] = None
    max_models_per_kind: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Most models of one kind in memory.", extra=HOT)
    ] = None
    memory_percent: Annotated[
        float, Meta(gt=0, le=1, description="Share of the machine's memory for models.", extra=HOT)
    ] = 0.8
    memory_budget_gb: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Memory for all models, in GB, instead of the share.", extra=HOT),
    ] = None
    contention_policy: Annotated[
        ContentionPolicy,
        Meta(description="What to do when busy models hold the room that another needs.", extra=HOT),
    ] = "wait_then_fail"
    contention_wait: Annotated[float, Meta(ge=0, description="Seconds to wait for room.", extra=HOT)] = 30.0
    drain_timeout: Annotated[
        float, Meta(ge=0, description="Seconds that running requests may take after a stop.")
    ] = 30.0

    # Access
    api_keys: Annotated[
        tuple[str, ...], Meta(description="Keys that clients must show.", extra=flag("--api-key"))
    ] = ()
    api_key_file: Annotated[
        str | None, Meta(description="File of named keys, their roles, rights and limits.")
    ] = None
    allow_unauthenticated: Annotated[
        bool, Meta(description="Allow management and downloads without a key on any address.")
    ] = False
    open_management: Annotated[
        tuple[str, ...], Meta(description="Paths of management that need no key on any address.")
    ] = ()
    open_paths: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses that need no key where keys are set, with all below them.",
            extra=flag("--open-path"),
        ),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(description="More values of the Host header to answer to.", extra=flag("--allowed-host")),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(description="Origins of web pages that may call (CORS).", extra=flag("--allowed-origin")),
    ] = ()
    metrics_auth: Annotated[bool, Meta(description="Ask for a key at /metrics too.")] = False
    page: Annotated[bool, Meta(description="Serve a page for browsers at `/`: chat, models, activity.")] = (
        True
    )
    enable_metrics: Annotated[bool, Meta(description="Serve Prometheus metrics.")] = False

    # Limits
    timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="Seconds a request may take.", extra=HOT)
    ] = None
    resume_streams: Annotated[
        bool,
        Meta(description="Let a stream whose model's process dies go on with the next one.", extra=HOT),
    ] = True
    keepalive_interval: Annotated[
        float, Meta(gt=0, description="Seconds of silence before a stream gets a comment.", extra=HOT)
    ] = 10.0
    body_timeout: Annotated[
        float, Meta(gt=0, description="Seconds that a request body may pause.", extra=HOT)
    ] = 30.0
    max_body_mb: Annotated[float, Meta(gt=0, description="Largest request body, in MiB.", extra=HOT)] = 64.0
    max_upload_mb: Annotated[float, Meta(gt=0, description="Largest uploaded file, in MiB.", extra=HOT)] = (
        128.0
    )
    max_speech_chars: Annotated[
        int, Meta(ge=1, description="Longest text to speak, in characters.", extra=HOT)
    ] = 32_768
    speech_format: Annotated[
        FileFormat,
        Meta(description="Format of speech where a request names none.", extra=HOT),
    ] = "mp3"
    stream_usage: Annotated[
        Literal["asked", "always"],
        Meta(
            description="Tell the usage at the end of streams of chat that ask for it, or of all but those that "
            "refuse it.",
            extra=HOT,
        ),
    ] = "asked"
    return_documents: Annotated[
        bool,
        Meta(description="Give ranked documents back where a request does not say.", extra=HOT),
    ] = True
    max_choices: Annotated[int, Meta(ge=1, description="Most choices in a request.", extra=HOT)] = 16
    max_concurrent: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Most requests at once.", extra=HOT)
    ] = None
    rate_limit: Annotated[Natural, Meta(description="Requests a minute and client; 0 is off.", extra=HOT)] = 0
    token_rate_limit: Annotated[
        Natural, Meta(description="Tokens a minute and client; 0 is off.", extra=HOT)
    ] = 0

    # Media from outside
    media_fetch: Annotated[bool, Meta(description="Fetch media from http(s) addresses.")] = True
    media_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="Fetch media from these hosts alone, also on a private network; `*` is any public host.",
            extra=flag("--media-host"),
        ),
    ] = ()
    media_path: Annotated[str | None, Meta(description="Folder that file paths may point into.")] = None
    media_max_mb: Annotated[float, Meta(gt=0, description="Largest fetched file, in MiB.")] = 64.0
    media_timeout: Annotated[float, Meta(gt=0, description="Seconds a fetch may take.")] = 30.0

    # Responses store, MCP
    response_store: Annotated[str | None, Meta(description="SQLite file of stored responses.")] = None
    response_store_entries: Annotated[Natural, Meta(description="Most stored responses.")] = 1024
    response_store_mb: Annotated[
        float, Meta(gt=0, description="Most memory for stored responses, in MiB.")
    ] = 256.0
    response_store_hours: Annotated[
        float, Meta(gt=0, description="Hours that stored responses are kept.")
    ] = 720.0
    files_dir: Annotated[
        str | None, Meta(description="Folder of uploaded files and batches; not set is one of Pippin's own.")
    ] = None
    files_mb: Annotated[
        float,
        Meta(gt=0, description="Most disk for the files and the answers of batches of one key, in MiB."),
    ] = 1024.0
    batch_concurrency: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Lines of batches that run at once while nobody else is being answered.",
        ),
    ] = 8
    cache_salt_per_key: Annotated[
        bool | None,
        Meta(
            description="Keep the prefix caches of API keys apart; without it, where there are several keys. "
            "Prompts of `warm_prompts` serve callers without a salt."
        ),
    ] = None
    mcp_config: Annotated[str | None, Meta(description="JSON or YAML file of MCP servers.")] = None
    web_search: Annotated[
        Annotated[str, Meta(pattern=r"^(mcp:[^/]+/.+|https?://.*\{query\}.*)$")] | None,
        Meta(
            description="What searches the web where requests ask for that: mcp:SERVER/TOOL, or an address with "
            "{query} in it, which is fetched by the rules for media."
        ),
    ] = None
    mcp_offer: Annotated[
        McpOffer, Meta(description="Offer tools of MCP servers to chats that ask, or to all.", extra=HOT)
    ] = "asked"
