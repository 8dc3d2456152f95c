"""A request to a language model, in terms that belong to no dialect."""

from typing import Any, Final, Literal

from msgspec import Struct, field

from pippin.core.conversation import Message, Tool, ToolChoice, Toolset, WebSearch
from pippin.core.errors import FieldName

OverflowPolicy = Literal["error", "truncate", "summarize"]
LoopGuard = Literal["off", "warn", "stop"]


RESERVED_VARIABLES: Final = frozenset(
    {
        # Variables that a renderer passes to every chat template, and the arguments of transformers' renderer.
        *("messages", "conversation", "tools", "tool_choice", "chat_template", "tokenize"),
        *("add_generation_prompt", "continue_final_message", "return_dict", "return_tensors"),
        *("return_assistant_tokens_mask", "padding", "truncation", "max_length"),
        *("tokenizer_kwargs", "raise_exception", "strftime_now"),
        *("bos_token", "eos_token", "pad_token", "unk_token"),
        # Jinja's own names.
        *("range", "namespace", "dict", "lipsum", "cycler", "joiner", "loop"),
        *("self", "caller", "varargs", "kwargs"),
    }
)
"""Template variables that a request may not set: the server sets them, or they would change the template."""


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen. `core/parameters.py` gives the meaning and range of each number.

    `None` means unset. The service merges defaults (request > model option > server option > checkpoint > Pippin); a
    parameter that is still `None` in the engine does nothing, or takes its `default` where its filter is on without it.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    p_less: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    repetition_context: int | None = None
    presence_penalty: float | None = None
    presence_context: int | None = None
    frequency_penalty: float | None = None
    frequency_context: int | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None


JsonSpacing = Literal["any", "one-line", "compact"]
"""The white space between the tokens of JSON: none, a space or a line end, as the model likes; a space after each colon
and comma; none at all. Where it is fixed, fewer tokens are chosen."""


class JsonObject(Struct, frozen=True, tag=True, omit_defaults=True):
    """Any JSON object."""


class JsonSchema(Struct, frozen=True, tag=True, omit_defaults=True):
    schema: dict[str, Any] | bool
    name: str | None = None
    strict: bool = True


class Regex(Struct, frozen=True, tag=True):
    pattern: str


class Choice(Struct, frozen=True, tag=True):
    options: tuple[str, ...]


class Grammar(Struct, frozen=True, tag=True):
    syntax: Literal["lark", "gbnf"]
    source: str


OutputFormat = JsonObject | JsonSchema | Regex | Choice | Grammar


class Thinking(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether and how much the model reasons before it answers."""

    enabled: bool | None = None  # None: the operator's setting, else the template's default
    off_by_default: bool = False  # the API's default, used where neither the request nor the operator decides
    budget: int | None = None  # tokens of reasoning, then the end marker is forced
    effort: str | None = None  # handed to the template as reasoning_effort
    start_marker: str | None = None
    end_marker: str | None = None


class Decision(Struct, frozen=True, omit_defaults=True):
    """A question that the user asks last, and the answers to it whose log probabilities are wanted."""

    question: str
    labels: tuple[str, ...]


class GenerationRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to a language model: a conversation, or a raw prompt.

    Exactly one of `messages` and `prompt` is set. The `n` choices share one prefill. `logprobs` is the number of
    alternatives to report beside each chosen token (0: the chosen token alone).
    """

    model: str
    messages: tuple[Message, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    suffix: str | None = None  # text after the gap, for models with fill-in-the-middle tokens
    tools: tuple[Tool, ...] = ()
    toolsets: tuple[Toolset, ...] = ()  # replaced by `tools` before the request goes to a worker
    web_search: WebSearch | None = None  # likewise
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True
    tool_format: str | None = None  # a parser's name, instead of the detected one
    read_calls: bool = True  # False: tool calls stay text, including their markup
    max_tool_calls: int | None = None  # toolset calls that Pippin makes before the model must answer
    sampling: Sampling = field(default_factory=Sampling)
    output_format: OutputFormat | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False  # keep the stop string in the output
    ignore_eos: bool = False
    max_tokens: int | None = None
    # Where an API makes every client name a length, more than is allowed is cut, not refused.
    cut_max_tokens: bool = False
    min_tokens: int = 0
    loop_guard: LoopGuard | None = None  # of an answer that repeats itself; None in an engine: off
    json_spacing: JsonSpacing | None = None  # of JSON in an output format; None: the model's option
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    decisions: tuple[Decision, ...] = ()  # their labels are scored (`Scored`), and nothing is generated
    echo: bool = False  # report the prompt's own text and tokens first (`PromptEcho`)
    thinking: Thinking = field(default_factory=Thinking)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    continue_final: bool = False  # the last message goes on with the answer, or with each of the decisions
    overflow: OverflowPolicy | None = None
    context_limit: int | None = None  # tokens of prompt and answer, if less than the model's window
    prediction: str | None = None  # expected text of the answer; affects speed only
    adapter: str | None = None
    cache_salt: str | None = None
    priority: int = 0  # higher runs first
    account: str = ""  # whose places it takes: among requests of one priority, accounts take turns
    timeout: float | None = None  # seconds, from submission
    keep_alive: float | None = None  # seconds the model stays loaded afterwards; < 0: for ever
    names: tuple[FieldName, ...] = ()  # names in the client's API, for refusals
