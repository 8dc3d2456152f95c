"""The options of the server itself: address, access, limits, where models are found."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from pippin.config.options.marks import AboveZero, Natural, Positive, about
from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelKind
from pippin.core.tasks import FileFormat

ContentionPolicy = Literal["wait", "fail", "preempt", "wait_then_fail", "wait_then_preempt"]
McpOffer = Literal["asked", "always"]


class ModelEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that the operator named: on the command line or in the YAML file."""

    path: str  # folder, repository id, alias or catalog id
    name: str | None = None  # served name; the catalog's id if not set
    kind: ModelKind | None = None
    preload: bool = True
    listed: bool = True  # False: known to a profile, and not listed before it is on the disk
    options: ModelOptions = field(default_factory=ModelOptions)  # complete: `model_defaults` and the entry's

    @property
    def called(self) -> str:
        """The name under which the catalog finds the model."""
        return self.name or self.path

    def is_of(self, id: str) -> bool:
        """Whether a model with this id is the one that the operator named; the id of a folder is its last part."""
        return id in (self.name, self.path) or (self.name is None and id == Path(self.path).name)


class ServerOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    # Address
    host: Annotated[str, about("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, about("Port to listen on; 0 picks one.", ge=0, le=65535)] = 8000
    unix_socket: Annotated[
        str | None, about("File to listen at too, as a Unix socket that this user alone can use.")
    ] = None
    restart: Annotated[
        bool, about("Start the server's process again when it dies; what is stored goes on.")
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], about("Least severe line to log.", hot=True)
    ] = "info"
    log_format: Annotated[Literal["text", "json"], about("Form of the log.")] = "text"
    log_file: Annotated[str | None, about("File to log to, beside the terminal.")] = None

    # Models
    models: Annotated[tuple[ModelEntry, ...], about("Models to serve.")] = ()
    model_defaults: ModelOptions = field(default_factory=ModelOptions)
    model_dirs: Annotated[tuple[str, ...], about("More folders to find models in.", flag="--model-dir")] = ()
    model_paths: Annotated[
        tuple[str, ...],
        about("Folders inside which requests may name a model by its path.", flag="--model-root", hot=True),
    ] = ()
    aliases: Annotated[
        dict[str, str], about("Short names of models: name to model.", flag="--alias", hot=True)
    ] = field(default_factory=dict)
    claude_model: Annotated[str | None, about("Model that answers for any claude-* name.", hot=True)] = None
    list_claude_names: Annotated[
        bool,
        about(
            "List language models under names of Anthropic's models too, for programs that take no others.",
            hot=True,
        ),
    ] = False
    any_model_name: Annotated[
        bool, about("Let the model answer whatever name a request has, where one alone is served.", hot=True)
    ] = False
    served_only: Annotated[
        bool | None,
        about(
            "Where models are named at the start, serve those alone and answer 404 for other names; "
            "without it, that is done where callers without a key can reach the server.",
            hot=True,
        ),
    ] = None
    offline: Annotated[bool, about("Never use the network.")] = False
    allow_downloads: Annotated[
        bool | None,
        about(
            "Let requests download models; not set allows it on loopback, "
            "and elsewhere with `allow_unauthenticated`.",
            hot=True,
        ),
    ] = None
    download_timeout: Annotated[
        AboveZero, about("Seconds that a download may go without data.", hot=True)
    ] = 300.0
    download_retries: Annotated[Natural, about("Tries after a failed download.", hot=True)] = 3

    # Memory and the pool
    max_models: Annotated[Positive | None, about("Most models in memory.", hot=True)] = None
    max_models_per_kind: Annotated[Positive | None, about("Most models of one kind in memory.", hot=True)] = (
        None
    )
    memory_percent: Annotated[
        float, about("Share of the machine's memory for models.", gt=0, le=1, hot=True)
    ] = 0.8
    memory_budget_gb: Annotated[
        AboveZero | None,
        about("Memory for all models, in GB, instead of the share.", hot=True),
    ] = None
    contention_policy: Annotated[
        ContentionPolicy, about("What to do when busy models hold the room that another needs.", hot=True)
    ] = "wait_then_fail"
    contention_wait: Annotated[float, about("Seconds to wait for room.", ge=0, hot=True)] = 30.0
    drain_timeout: Annotated[float, about("Seconds that running requests may take after a stop.", ge=0)] = (
        30.0
    )

    # Access
    api_keys: Annotated[tuple[str, ...], about("Keys that clients must show.", flag="--api-key")] = ()
    api_key_file: Annotated[str | None, about("File of named keys, their roles, rights and limits.")] = None
    allow_unauthenticated: Annotated[
        bool, about("Allow management and downloads without a key on any address.")
    ] = False
    open_management: Annotated[
        tuple[str, ...], about("Paths of management that need no key on any address.")
    ] = ()
    open_paths: Annotated[
        tuple[str, ...],
        about("Addresses that need no key where keys are set, with all below them.", flag="--open-path"),
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...], about("More values of the Host header to answer to.", flag="--allowed-host")
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...], about("Origins of web pages that may call (CORS).", flag="--allowed-origin")
    ] = ()
    metrics_auth: Annotated[bool, about("Ask for a key at /metrics too.")] = False
    page: Annotated[bool, about("Serve a page for browsers at `/`: chat, models, activity.")] = True
    enable_metrics: Annotated[bool, about("Serve Prometheus metrics.")] = False

    # Limits
    timeout: Annotated[AboveZero | None, about("Seconds a request may take.", hot=True)] = None
    resume_streams: Annotated[
        bool, about("Let a stream whose model's process dies go on with the next one.", hot=True)
    ] = True
    keepalive_interval: Annotated[
        AboveZero, about("Seconds of silence before a stream gets a comment.", hot=True)
    ] = 10.0
    body_timeout: Annotated[AboveZero, about("Seconds that a request body may pause.", hot=True)] = 30.0
    max_body_mb: Annotated[AboveZero, about("Largest request body, in MiB.", hot=True)] = 64.0
    max_upload_mb: Annotated[AboveZero, about("Largest uploaded file, in MiB.", hot=True)] = 128.0
    max_speech_chars: Annotated[Positive, about("Longest text to speak, in characters.", hot=True)] = 32_768
    speech_format: Annotated[FileFormat, about("Format of speech where a request names none.", hot=True)] = (
        "mp3"
    )
    stream_usage: Annotated[
        Literal["asked", "always"],
        about(
            "Tell the usage at the end of streams of chat that ask for it, or of all but those that "
            "refuse it.",
            hot=True,
        ),
    ] = "asked"
    return_documents: Annotated[
        bool, about("Give ranked documents back where a request does not say.", hot=True)
    ] = True
    max_choices: Annotated[Positive, about("Most choices in a request.", hot=True)] = 16
    max_concurrent: Annotated[Positive | None, about("Most requests at once.", hot=True)] = None
    rate_limit: Annotated[Natural, about("Requests a minute and client; 0 is off.", hot=True)] = 0
    token_rate_limit: Annotated[Natural, about("Tokens a minute and client; 0 is off.", hot=True)] = 0

    # Media from outside
    media_fetch: Annotated[bool, about("Fetch media from http(s) addresses.")] = True
    media_hosts: Annotated[
        tuple[str, ...],
        about(
            "Fetch media from these hosts alone, also on a private network; `*` is any public host.",
            flag="--media-host",
        ),
    ] = ()
    media_path: Annotated[str | None, about("Folder that file paths may point into.")] = None
    media_max_mb: Annotated[AboveZero, about("Largest fetched file, in MiB.")] = 64.0
    media_timeout: Annotated[AboveZero, about("Seconds a fetch may take.")] = 30.0

    # Responses store, MCP
    response_store: Annotated[str | None, about("SQLite file of stored responses.")] = None
    response_store_entries: Annotated[Natural, about("Most stored responses.")] = 1024
    response_store_mb: Annotated[AboveZero, about("Most memory for stored responses, in MiB.")] = 256.0
    response_store_hours: Annotated[AboveZero, about("Hours that stored responses are kept.")] = 720.0
    files_dir: Annotated[
        str | None, about("Folder of uploaded files and batches; not set is one of Pippin's own.")
    ] = None
    files_mb: Annotated[
        AboveZero, about("Most disk for the files and the answers of batches of one key, in MiB.")
    ] = 1024.0
    batch_concurrency: Annotated[
        int, about("Lines of batches that run at once while nobody else is being answered.", ge=1, le=1024)
    ] = 8
    cache_salt_per_key: Annotated[
        bool | None,
        about(
            "Keep the prefix caches of API keys apart; without it, where there are several keys. "
            "Prompts of `warm_prompts` serve callers without a salt."
        ),
    ] = None
    mcp_config: Annotated[str | None, about("JSON or YAML file of MCP servers.")] = None
    web_search: Annotated[
        Annotated[str, Meta(pattern=r"^(mcp:[^/]+/.+|https?://.*\{query\}.*)$")] | None,
        about(
            "What searches the web where requests ask for that: mcp:SERVER/TOOL, or an address with "
            "{query} in it, which is fetched by the rules for media."
        ),
    ] = None
    mcp_offer: Annotated[
        McpOffer, about("Offer tools of MCP servers to chats that ask, or to all.", hot=True)
    ] = "asked"
