"""Messages between the process that owns the models and a process that answers requests with them.

The owner leases models for the others, which talk to workers over sockets of their own, received with `Lent`. `Passed`
moves clients' connections in both directions. Messages that bring a descriptor say so; all others are plain msgpack
structs.
"""

from typing import Literal

from msgspec import Struct

from pippin.config.options.model import ModelOptions
from pippin.config.settings import Settings
from pippin.core.errors import ErrorReport
from pippin.core.models import ModelInfo, ModelState


class Passed(Struct, frozen=True, tag=True):
    """A client's connection (the descriptor) and the bytes already read from it; sent in both directions."""

    data: bytes


# From the owner


class Begin(Struct, frozen=True, tag=True):
    """The first message. `ledger` is the file in which limits are counted."""

    settings: Settings
    number: int
    ledger: str


class Adopt(Struct, frozen=True, tag=True):
    """The settings have changed."""

    settings: Settings


class Lent(Struct, frozen=True, tag=True):
    """A worker that may be used. The descriptor is the link to it, on which this process is that guest."""

    worker: int
    guest: str
    info: ModelInfo


class Leased(Struct, frozen=True, tag=True):
    """The answer to `Lease`. The worker was lent before; it is None if the model has replicas, and then `Place` is
    asked for each request."""

    serial: int
    worker: int | None
    info: ModelInfo
    options: ModelOptions


class Placed(Struct, frozen=True, tag=True):
    """The answer to `Place`: the worker that answers the request. It was lent before."""

    serial: int
    worker: int


class Found(Struct, frozen=True, tag=True):
    """The answer to `Fetch` and `Complete`."""

    serial: int
    info: ModelInfo


class Refused(Struct, frozen=True, tag=True):
    """The answer to any question that fails."""

    serial: int
    error: ErrorReport


class Told(Struct, frozen=True, tag=True, omit_defaults=True):
    """The answer to `Keep` and `Recall`; only the fields that were asked for are set."""

    serial: int
    body: bytes | None = None
    holder: tuple[str, Literal["response", "conversation"]] | None = None
    done: bool = False  # whether the entry was written or deleted


class WorkerFails(Struct, frozen=True, tag=True):
    """All requests of a worker fail with this error. `gone`: the worker takes no more."""

    worker: int
    error: ErrorReport
    gone: bool


class Pooled(Struct, frozen=True, tag=True):
    """A model requested since the start, and its worker's description if it has a worker."""

    state: ModelState
    info: ModelInfo | None


class Models(Struct, frozen=True, tag=True):
    """The models of the pool, sent whenever they change."""

    models: list[Pooled]


class EndAnswer(Struct, frozen=True, tag=True):
    """An authorised caller ends an answer, by the id of its run."""

    run: str
    error: ErrorReport


class AskCounts(Struct, frozen=True, tag=True):
    pass


class Stop(Struct, frozen=True, tag=True):
    """Take no more requests; running ones may finish within `deadline` seconds."""

    deadline: float


# From the others


class Ready(Struct, frozen=True, tag=True):
    """The process accepts requests from now on."""


class Closed(Struct, frozen=True, tag=True):
    """A connection that was passed here was closed or passed back."""


class Lease(Struct, frozen=True, tag=True):
    serial: int
    model: str


class Release(Struct, frozen=True, tag=True, omit_defaults=True):
    """Release a lease, or stop waiting for one."""

    serial: int
    keep_alive: float | None = None


class Place(Struct, frozen=True, tag=True, omit_defaults=True):
    """Asks which of a model's replicas answers the request of this lease. A lease has one such request at a time."""

    serial: int
    lease: int
    prefix: tuple[bytes, ...]  # `prefix_of` the request
    again: bool = False  # the same request once more, because its replica was lost


class LinkLost(Struct, frozen=True, tag=True):
    """The link to a worker has ended."""

    worker: int


class Fetch(Struct, frozen=True, tag=True):
    """Download a missing model, if requests may trigger that."""

    serial: int
    name: str


class Complete(Struct, frozen=True, tag=True):
    """Download the files that a model's options name, if requests may trigger that."""

    serial: int
    info: ModelInfo


class Keep(Struct, frozen=True, tag=True, omit_defaults=True):
    """Write an entry to the store of responses and conversations."""

    serial: int
    owner: str
    id: str
    kind: Literal["response", "conversation"]
    body: bytes
    items: list[str]
    replaces: bytes | None = None  # as in `ResponseStore.put`


class Recall(Struct, frozen=True, tag=True, omit_defaults=True):
    """Read from that store or delete from it, with the method of `ResponseStore` that `act` names."""

    serial: int
    act: Literal["get", "begin", "holder_of", "delete"]
    owner: str
    id: str  # of the entry; for `holder_of`, of an item
    kind: Literal["response", "conversation"] = "response"
    size: int = 0


class Began(Struct, frozen=True, tag=True):
    """An answer has begun: its owner, and the ids of its runs as workers know them."""

    run: str
    exchange: str
    owner: str
    ids: tuple[str, ...]


class Ended(Struct, frozen=True, tag=True):
    """An answer has ended, and took this many tokens."""

    run: str
    prompt_tokens: int
    completion_tokens: int


class Sample(Struct, frozen=True, array_like=True):
    """One value of a metric; `name` is the suffix of the metric's name."""

    name: str
    labels: dict[str, str]
    value: float


class Family(Struct, frozen=True, array_like=True):
    name: str
    text: str
    type: str
    samples: list[Sample]


class Counts(Struct, frozen=True, tag=True):
    """The answer to `AskCounts`: everything that this process has counted since its start."""

    families: list[Family]


FromOwner = (
    Begin
    | Adopt
    | Passed
    | Lent
    | Leased
    | Placed
    | Found
    | Refused
    | Told
    | WorkerFails
    | Models
    | EndAnswer
    | AskCounts
    | Stop
)
ToOwner = (
    Ready
    | Passed
    | Closed
    | Lease
    | Release
    | Place
    | LinkLost
    | Fetch
    | Complete
    | Keep
    | Recall
    | Began
    | Ended
    | Counts
)
