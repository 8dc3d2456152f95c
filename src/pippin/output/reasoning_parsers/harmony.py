"""The analysis channel of gpt-oss: `<|channel|>analysis<|message|>` reasoning `<|end|>`."""

from pippin.output.channels import Channels, Route
from pippin.output.grammars import Grammar
from pippin.output.reasoning_format import ReasoningFormat


def route(header: str) -> Route:
    """`assistant to=functions.f commentary json`: recipient and channel, in either order."""
    words = header.split()
    recipient = next((word[3:] for word in words if word.startswith("to=")), None)
    if recipient not in (None, "user", "assistant", "all"):
        return Route("call", recipient.removeprefix("functions."))
    return Route("reasoning" if "analysis" in words else "text")


CHANNELS = Channels(
    openers=("<|start|>", "<|channel|>"),
    header_ends=("<|message|>",),
    ends=("<|end|>", "<|return|>", "<|call|>"),
    route=route,
    begins=("to=",),
    further=("<|constrain|>",),
)


def thoughts(grammar: Grammar) -> str:
    """Any number of messages of the analysis channel."""
    channel, message = grammar.mark("<|channel|>"), grammar.mark("<|message|>")
    thought = f'{again(grammar)} {channel} "analysis" {message} {grammar.value_until("<|end|>")}'
    return f"{grammar.rule(thought)}*"


def again(grammar: Grammar) -> str:
    """How a further message begins; the prompt has begun the first."""
    return f'({grammar.mark("<|start|>")} "assistant")?'


def before_answer(grammar: Grammar) -> str:
    return f"{thoughts(grammar)} {again(grammar)}"


FORMAT = ReasoningFormat(
    name="harmony",
    aliases=("gpt_oss", "openai_gptoss"),
    start="<|channel|>analysis<|message|>",
    end="<|end|>",
    channels=CHANNELS,
    before_answer=("<|channel|>", "final", "<|message|>"),
    in_grammar=before_answer,
    signs=(("<|channel|>analysis",), ("<|channel|>", "<|constrain|>")),
    priority=40,
)
