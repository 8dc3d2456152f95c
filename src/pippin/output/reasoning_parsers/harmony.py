"""The analysis channel of gpt-oss: `<|channel|>analysis<|message|>` reasoning `<|end|>`."""

from pippin.output.channels import Channels, Route
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

FORMAT = ReasoningFormat(
    name="harmony",
    aliases=("gpt_oss", "openai_gptoss"),
    start="<|channel|>analysis<|message|>",
    end="<|end|>",
    channels=CHANNELS,
    signs=(("<|channel|>analysis",), ("<|channel|>", "<|constrain|>")),
    priority=40,
)
