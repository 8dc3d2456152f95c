"""The events that a worker answers with.

Grammar of a generation: `Accepted ToolsListed* Progress* PromptEcho? Scored? choice*`. The events of each choice are
`(PartStarted PartDelta* PartEnded)* Finished`, and choices are interleaved. `Failed` may end the request at any point;
nothing follows it. Tasks of other kinds answer `Accepted? item* terminal`.

Frequent events have `gc=False`: they can't be part of a cycle, so the garbage collector need not track them.
"""

from typing import Literal

from msgspec import Struct, field

from pippin.core.conversation import Tool
from pippin.core.errors import ErrorReport

PartKind = Literal["text", "reasoning", "tool_call", "server_call", "server_result"]
"""The last two belong to tools that Pippin calls for the model; a result has the id of its call."""

FinishReason = Literal["stop", "length", "tool_calls"]


class Accepted(Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The request was parsed and queued. Every failure that deserves a status code comes before this event."""

    prompt_tokens: int
    warnings: tuple[str, ...] = ()  # whole sentences on what was changed in the request


class Progress(Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """Progress on the prompt: `done` of `total`, `cached` among them, after `seconds`."""

    done: int
    total: int
    cached: int = 0
    seconds: float = 0.0


class Restarted(Struct, frozen=True, tag=True, gc=False):
    """The request starts over elsewhere, and everything it produced before is void. Sent only to readers that show
    nothing before the end (`Run.hold_back`)."""


class TopToken(Struct, frozen=True, array_like=True, gc=False):
    id: int
    raw: bytes
    logprob: float


class ToolsListed(Struct, frozen=True, tag=True):
    """Tools that Pippin calls for the model, under the names that their server gives them."""

    server: str
    tools: tuple[Tool, ...]


class Token(Struct, frozen=True, array_like=True, gc=False):
    """A sampled token. `raw` holds its bytes, which may be a part of a character."""

    id: int
    raw: bytes
    logprob: float | None  # natural log; None for the first token of a prompt
    top: tuple[TopToken, ...] = ()


class PromptEcho(Struct, frozen=True, tag=True, omit_defaults=True):
    """The prompt as the model saw it; `tokens` with logprobs where they were asked for."""

    text: str
    tokens: tuple[Token, ...] = ()


class Scored(Struct, frozen=True, tag=True):
    """The natural log probability of each label of each of a request's decisions, as the sum over its tokens."""

    logprobs: tuple[tuple[float, ...], ...]


class PartStarted(Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    choice: int
    index: int  # counts the parts of this choice from 0
    kind: PartKind
    id: str | None = None  # of a tool call
    name: str | None = None  # of a tool call
    server: str | None = None  # the tool's server, where Pippin calls the tool
    is_error: bool = False  # of a result
    gap: str = ""  # whitespace between this part and the last one of its kind, where both make one text


class PartDelta(Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """More of a part. For a tool call, `text` is a piece of the arguments' JSON text.

    `tokens` is filled only where logprobs were asked for; `completed` counts the completion tokens
    of this choice so far.
    """

    choice: int
    index: int
    text: str
    tokens: tuple[Token, ...] = ()
    completed: int = 0


class PartEnded(Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    choice: int
    index: int
    thought: bool = False  # the text was reasoning, as only its end showed: a stream has sent it as text


class Usage(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, read from the prefix cache
    stored_tokens: int = 0  # of the prompt, newly written to the prefix cache
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # of the completion
    draft_tokens: int = 0  # proposed by speculation
    accepted_tokens: int = 0  # of those
    forced_tokens: int = 0  # of the completion, which a grammar or a budget left no choice about

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Timings(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Milliseconds."""

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


class Finished(Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The end of one choice. Every choice of a request carries the same prompt figures."""

    choice: int
    reason: FinishReason
    stop_sequence: str | None = None
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    warnings: tuple[str, ...] = ()  # sentences about what the choice does not keep to


class Ending(Struct, frozen=True):
    """Base of the events that end a request; nothing follows them.

    A generation ends with the `Finished` of its last choice instead.
    """

    @property
    def used_tokens(self) -> int:
        """Tokens to charge to the caller's rate limits."""
        return 0


class Spent(Ending, frozen=True, kw_only=True, omit_defaults=True):
    """Base of the ends that tell all tokens that the request took."""

    usage: Usage = field(default_factory=Usage)

    @property
    def used_tokens(self) -> int:
        return self.usage.total


class Failed(Ending, frozen=True, tag=True):
    """The end of the whole request."""

    error: ErrorReport


class Counted(Ending, frozen=True, tag=True):
    tokens: int


class Rendered(Ending, frozen=True, tag=True):
    text: str
    tokens: tuple[int, ...] = ()


class Tokenized(Ending, frozen=True, tag=True):
    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...] = ()


class Detokenized(Ending, frozen=True, tag=True):
    text: str


class Embedded(Ending, frozen=True, tag=True):
    """`vectors` is float32, little-endian, one row of `dimensions` values for each input."""

    vectors: bytes
    dimensions: int
    used_tokens: int


class Ranked(Ending, frozen=True, tag=True):
    scores: tuple[float, ...]  # one for each document, in their order
    used_tokens: int


class Decided(Ending, frozen=True, tag=True):
    answers: str  # JSON: an object with one answer per question, as the model's library returns it
    used_tokens: int


class Word(Struct, frozen=True, omit_defaults=True):
    text: str
    start: float  # seconds
    end: float
    probability: float | None = None


class Segment(Struct, frozen=True, tag=True, omit_defaults=True):
    """A segment of transcribed speech; times in seconds."""

    id: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[Word, ...] = ()
    seek: int = 0  # where the window that it was heard in begins, in hundredths of a second


class Transcribed(Spent, frozen=True, tag=True, omit_defaults=True):
    """The end of a transcription; its segments came before."""

    text: str
    language: str | None  # its code, if the model has codes
    duration: float  # seconds of audio
    language_name: str | None = None  # in English and small letters, as in OpenAI's answers


class SpeechChunk(Struct, frozen=True, tag=True):
    data: bytes  # encoded in the format that was asked for


class Spoken(Spent, frozen=True, tag=True, omit_defaults=True):
    """The end of speech; `duration` in seconds."""

    sample_rate: int
    duration: float


class Voices(Ending, frozen=True, tag=True):
    names: tuple[str, ...]


class Picture(Struct, frozen=True, tag=True, omit_defaults=True):
    """An encoded picture."""

    index: int
    data: bytes
    width: int
    height: int
    seed: int


class PicturesDone(Spent, frozen=True, tag=True, omit_defaults=True):
    """The end of the pictures."""


Generated = PartStarted | PartDelta | PartEnded | Finished | PromptEcho | Scored | ToolsListed
Read = Counted | Rendered | Tokenized | Detokenized | Embedded | Ranked | Decided
Media = Segment | Transcribed | SpeechChunk | Spoken | Voices | Picture | PicturesDone
Event = Accepted | Progress | Restarted | Failed | Generated | Read | Media
