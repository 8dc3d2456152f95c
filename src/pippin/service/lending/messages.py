"""What crosses the channel between the process that owns the models and one that answers requests to them.

The owner leases for the others, and they speak to workers over sockets of their own, which come with `Lent`. Clients'
connections come and go with `Passed`. A message that brings a descriptor says so; the rest is a msgpack struct alone.
"""

from typing import Literal

from msgspec import Struct

from pippin.config.options.model import ModelOptions
from pippin.config.settings import Settings
from pippin.core.errors import ErrorReport
from pippin.core.models import ModelInfo, ModelState


class Passed(Struct, frozen=True, tag=True):
    """A client's connection, which is the descriptor, and what was read from it; both ways."""

    data: bytes


# From the owner


class Begin(Struct, frozen=True, tag=True):
    """The first message. `ledger`: the file in which limits are counted."""

    settings: Settings
    number: int
    ledger: str


class Adopt(Struct, frozen=True, tag=True):
    """The settings have changed."""

    settings: Settings


class Lent(Struct, frozen=True, tag=True):
    """A worker that may be used: the descriptor is the link to it, over which this process is that guest."""

    worker: int
    guest: str
    info: ModelInfo


class Leased(Struct, frozen=True, tag=True):
    """The answer to `Lease`. The worker was lent before; where the model has replicas it is None, and each request asks
    to be placed."""

    serial: int
    worker: int | None
    info: ModelInfo
    options: ModelOptions


class Placed(Struct, frozen=True, tag=True):
    """The answer to `Place`: the worker that is to answer the request. It was lent before."""

    serial: int
    worker: int


class Found(Struct, frozen=True, tag=True):
    """The answer to `Fetch` and `Complete`."""

    serial: int
    info: ModelInfo


class Refused(Struct, frozen=True, tag=True):
    """The answer to any question that can't be answered otherwise."""

    serial: int
    error: ErrorReport


class Told(Struct, frozen=True, tag=True, omit_defaults=True):
    """The answer to `Keep` and `Recall`: what of it is wanted."""

    serial: int
    body: bytes | None = None
    holder: tuple[str, Literal["response", "conversation"]] | None = None
    done: bool = False  # whether it was written, or deleted


class WorkerFails(Struct, frozen=True, tag=True):
    """All requests of a worker end with this error; `gone`: it takes no more."""

    worker: int
    error: ErrorReport
    gone: bool


class Pooled(Struct, frozen=True, tag=True):
    """A model that was asked for since the start, and what its worker tells of it where it has one."""

    state: ModelState
    info: ModelInfo | None


class Models(Struct, frozen=True, tag=True):
    """The models of the pool, whenever that has changed."""

    models: list[Pooled]


class EndAnswer(Struct, frozen=True, tag=True):
    """Somebody who may do so ends an answer, by the id of its run."""

    run: str
    error: ErrorReport


class AskCounts(Struct, frozen=True, tag=True):
    pass


class Stop(Struct, frozen=True, tag=True):
    """Take no more requests; those that run may finish within so many seconds."""

    deadline: float


# From the others


class Ready(Struct, frozen=True, tag=True):
    """The process answers from now on."""


class Closed(Struct, frozen=True, tag=True):
    """A connection that was passed here has been closed, or passed back."""


class Lease(Struct, frozen=True, tag=True):
    serial: int
    model: str


class Release(Struct, frozen=True, tag=True, omit_defaults=True):
    """Give a lease back, or stop waiting for one."""

    serial: int
    keep_alive: float | None = None


class Place(Struct, frozen=True, tag=True, omit_defaults=True):
    """Which of a model's replicas is to answer the request of this lease, of which there is one at a time?"""

    serial: int
    lease: int
    prefix: tuple[bytes, ...]  # `prefix_of` the request
    again: bool = False  # it is still the same one, whose replica was lost


class LinkLost(Struct, frozen=True, tag=True):
    """The link to a worker has ended."""

    worker: int


class Fetch(Struct, frozen=True, tag=True):
    """Download a model that is missing, if requests may cause that."""

    serial: int
    name: str


class Complete(Struct, frozen=True, tag=True):
    """Download what a model's options name beside it, if requests may cause that."""

    serial: int
    info: ModelInfo


class Keep(Struct, frozen=True, tag=True, omit_defaults=True):
    """Write an entry into the store of responses and conversations."""

    serial: int
    owner: str
    id: str
    kind: Literal["response", "conversation"]
    body: bytes
    items: list[str]
    replaces: bytes | None = None  # as `ResponseStore.put` has it


class Recall(Struct, frozen=True, tag=True, omit_defaults=True):
    """Read that store or delete from it, as the methods of `ResponseStore` with these names do."""

    serial: int
    act: Literal["get", "begin", "holder_of", "delete"]
    owner: str
    id: str  # of the entry; for `holder_of` of an item
    kind: Literal["response", "conversation"] = "response"
    size: int = 0


class Began(Struct, frozen=True, tag=True):
    """An answer has begun: whose it is, and the ids of its runs as workers know them."""

    run: str
    exchange: str
    owner: str
    ids: tuple[str, ...]


class Ended(Struct, frozen=True, tag=True):
    """An answer has ended, and how many tokens it took."""

    run: str
    prompt_tokens: int
    completion_tokens: int


class Sample(Struct, frozen=True, array_like=True):
    """One figure of a metric: the suffix of its name is in `name`."""

    name: str
    labels: dict[str, str]
    value: float


class Family(Struct, frozen=True, array_like=True):
    name: str
    text: str
    type: str
    samples: list[Sample]


class Counts(Struct, frozen=True, tag=True):
    """The answer to `AskCounts`: all that this process has counted since its start."""

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
