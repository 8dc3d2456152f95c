"""A prepared request to a language model: what `prepare` gives and the engine runs."""

from msgspec import Struct

from pippin.core.conversation import Tool
from pippin.core.events import Accepted
from pippin.core.requests import GenerationRequest
from pippin.engines.language.constraints.grammar import CompiledGrammar
from pippin.engines.language.vision.media import PromptMedia, WholePrompt
from pippin.output.reasoning_formats import ReasoningFormat
from pippin.output.tool_format import ToolFormat


class Branch(Struct, frozen=True):
    """A question after the prompt, and the answers to it that are scored."""

    tokens: tuple[int, ...]
    labels: tuple[tuple[int, ...], ...]

    @property
    def longest(self) -> int:
        """Tokens of the question and of its longest label."""
        return len(self.tokens) + max(map(len, self.labels))


class LanguageJob(Struct, frozen=True, kw_only=True, eq=False):
    """`request.sampling` holds merged values; everything else that depends on tokenizer or template is here."""

    id: str
    request: GenerationRequest
    accepted: Accepted
    prompt: tuple[int, ...]
    prompt_text: str = ""  # as rendered; only where the request asks for `echo`
    raw_prompt: bool = False  # the prompt is text to go on with, no conversation
    branches: tuple[Branch, ...] = ()  # all follow the prompt
    max_tokens: int  # of each choice; 0 only scores the prompt and its branches
    eos: frozenset[int] = frozenset()  # tokens that end a choice; empty with `ignore_eos`
    pins: tuple[int, ...] = ()  # counts of prompt tokens after which the prefix cache keeps what it has
    partings: tuple[int, ...] = ()  # counts of prompt tokens after which others are likely to go on otherwise
    spares: tuple[int, ...] = ()  # counts of prompt tokens after which some may, if there is room for a state
    thinking_open: bool = False  # the prompt ends inside reasoning
    may_think: bool = False  # the model may open its reasoning by itself
    thinking_start: tuple[int, ...] = ()  # the tokens that open it
    thinking_budget: int | None = None  # the request's, or the model's option
    thinking_end: tuple[int, ...] = ()  # tokens that are forced when the budget is used up
    grammar: CompiledGrammar | None = None
    grammar_has_reasoning: bool = False  # it begins with the answer's first token, not after the reasoning
    tools: tuple[Tool, ...] = ()  # those that may be called
    tool_format: ToolFormat | None = None
    reasoning_format: ReasoningFormat | None = None
    stops: tuple[str, ...] = ()  # the request's and the formats' own
    seed: int = 0  # the request's, or drawn when it was prepared; see `sampler.choice_seed`
    created: float = 0.0  # monotonic seconds
    key: bytes = b""  # of adapter and salt, for the prefix cache
    media: PromptMedia | WholePrompt | None = None
    prediction: tuple[int, ...] = ()  # what the client expects the answer to be
