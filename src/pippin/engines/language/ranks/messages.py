"""Messages between ranks as msgpack: what they agree on before the first step, and what rank 0 tells the others.

A rank with other versions of Pippin or MLX is refused when the group starts, so all ranks know the same messages.
"""

from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec import Struct

from pippin import __version__
from pippin.config.installed import version
from pippin.core.decoding import message_decoder
from pippin.core.requests import GenerationRequest
from pippin.engines.device import MemoryShares
from pippin.engines.language.job import Branch

VERSION: Final = 2
"""The version of these messages; raised whenever one changes."""


def software() -> str:
    """The software whose versions must be the same on all ranks."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("mlx", "mlx-lm"))
    return f"Pippin {__version__} (ranks {VERSION}), {libraries}"


class RankLink(Protocol):
    """The link to the other ranks: from rank 0 to all of them, from another rank to rank 0. A rank that loses it
    ends."""

    def tell(self, payload: bytes) -> None:
        """Send a payload to every rank at the other end."""

    def hear(self) -> list[bytes]:
        """Wait for the next payload of every rank at the other end, in the order of ranks."""


class Hello(Struct, frozen=True, tag=True):
    """A rank's software and model, sent before anything is loaded; rank 0 answers with its own if all are alike."""

    software: str
    model: str  # a fingerprint of its files


class Ready(Struct, frozen=True, tag=True):
    """A rank has its weights."""

    shares: MemoryShares  # the most that it could give
    keeps_prefixes: bool


class Take(Struct, frozen=True, tag=True):
    """A job was submitted: the fields of `LanguageJob` that decide what is computed."""

    id: str
    request: GenerationRequest
    prompt: tuple[int, ...]
    branches: tuple[Branch, ...]
    max_tokens: int
    pins: tuple[int, ...]
    partings: tuple[int, ...]
    spares: tuple[int, ...]
    key: bytes
    created: float


class Drop(Struct, frozen=True, tag=True):
    """A request was cancelled."""

    id: str


class Step(Struct, frozen=True, tag=True):
    """A step begins."""

    now: float  # monotonic seconds of rank 0
    state: tuple[int, ...]  # counts of the engine at that point: a rank with others has gone astray


class Budget(Struct, frozen=True, tag=True):
    """How many prompt tokens the step may compute."""

    tokens: int


class Tokens(Struct, frozen=True, tag=True):
    """The tokens that were drawn, in the order of the batch."""

    tokens: list[int]


class Verdict(Struct, frozen=True, tag=True):
    """The outcome of a token for its sequence or request."""

    outcome: Literal["goes on", "finished", "failed"]


class Clear(Struct, frozen=True, tag=True):
    prefixes_only: bool


class Adjust(Struct, frozen=True, tag=True):
    """Options that changed, as a part of `ModelOptions` in builtins."""

    options: dict[str, Any]


class Resize(Struct, frozen=True, tag=True):
    """Bytes that sequences and the prefix cache have from now on."""

    shares: MemoryShares


class Close(Struct, frozen=True, tag=True):
    """The model is unloaded."""


Told = Take | Drop | Step | Budget | Tokens | Verdict | Clear | Adjust | Resize | Close

encode = msgspec.msgpack.Encoder().encode
decode_told = message_decoder(list[Told]).decode
