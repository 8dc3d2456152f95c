"""Messages of Muse Spark: `to=self<|message|>` reasoning `<|eom|>`, `to=user<|message|>` answer."""

from pippin.output.channels import Channels, Route
from pippin.output.grammars import Grammar
from pippin.output.reasoning_format import ReasoningFormat


def route(header: str) -> Route:
    """Route a header. A message to a tool contains its call as markup, which is read as text."""
    return Route("reasoning" if "to=self" in header.split() else "text")


CHANNELS = Channels(
    openers=("<|start|>",),
    header_ends=("<|message|>",),
    ends=("<|eom|>", "<|eot|>"),
    route=route,
    begins=("to=",),
)


def thoughts(grammar: Grammar) -> str:
    """Any number of messages to itself, each followed by the beginning of the next one; the prompt begins the first."""
    said = grammar.value_until("<|eom|>")
    message = grammar.mark("<|message|>")
    start = grammar.mark("<|start|>")
    return grammar.rule(f'" to=self" {message} {said} {start} "assistant"') + "*"


def next_message(grammar: Grammar) -> str:
    return f'{grammar.mark("<|eom|>")} {grammar.mark("<|start|>")} "assistant"'


FORMAT = ReasoningFormat(
    name="muse_spark",
    aliases=("atem",),
    start="to=self<|message|>",
    end="<|eom|>",
    channels=CHANNELS,
    before_answer=(" to=user", "<|message|>"),
    in_grammar=thoughts,
    signs=(("to=self<|message|>",), ("<|eom|>", "<|message|>")),
    priority=20,
)
