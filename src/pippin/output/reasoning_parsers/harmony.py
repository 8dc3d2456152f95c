"""The analysis channel of gpt-oss: `<|channel|>analysis<|message|>` reasoning `<|end|>`."""

from pippin.output.channels import Channels, Route
from pippin.output.grammars import Grammar
from pippin.output.reasoning_format import ReasoningFormat


def route(header: str) -> Route:
    """Route a header such as `assistant to=functions.f commentary json`: recipient and channel, in either order."""
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
    """Any number of messages on the analysis channel, each followed by the beginning of the next message."""
    return f"{grammar.rule(further(grammar, 'analysis'))}*"


def further(grammar: Grammar, channel: str) -> str:
    """A message on this channel and the beginning of the next one; the prompt begins the first."""
    opener, message, start = map(grammar.mark, ("<|channel|>", "<|message|>", "<|start|>"))
    return f'{opener} "{channel}" {message} {grammar.value_until("<|end|>")} {start} "assistant"'


FORMAT = ReasoningFormat(
    name="harmony",
    aliases=("gpt_oss", "openai_gptoss"),
    start="<|channel|>analysis<|message|>",
    end="<|end|>",
    channels=CHANNELS,
    before_answer=("<|channel|>", "final", "<|message|>"),
    in_grammar=thoughts,
    signs=(("<|channel|>analysis",), ("<|channel|>", "<|constrain|>")),
    priority=40,
)
