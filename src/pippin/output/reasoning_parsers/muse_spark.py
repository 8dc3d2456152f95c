"""Messages of Muse Spark: `to=self<|message|>` reasoning `<|eom|>`, `to=user<|message|>` answer."""

from pippin.output.channels import Channels, Route
from pippin.output.reasoning_format import ReasoningFormat


def route(header: str) -> Route:
    """A message to a tool holds its call as markup, which is read as text."""
    return Route("reasoning" if "to=self" in header.split() else "text")


CHANNELS = Channels(
    openers=("<|start|>",),
    header_ends=("<|message|>",),
    ends=("<|eom|>", "<|eot|>"),
    route=route,
    begins=("to=",),
)

FORMAT = ReasoningFormat(
    name="muse_spark",
    aliases=("atem",),
    start="to=self<|message|>",
    end="<|eom|>",
    channels=CHANNELS,
    before_answer=("<|start|>", "assistant to=user", "<|message|>"),
    signs=(("to=self<|message|>",), ("<|eom|>", "<|message|>")),
    priority=20,
)
