"""A request's reasoning: how it begins and ends, as the model's format, the prompt and the request have it."""

from dataclasses import dataclass, replace

from pippin.core.requests import GenerationRequest
from pippin.engines.language.prompt.rendering import Prompt
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.output import formats
from pippin.output.reasoning_format import ReasoningFormat


@dataclass(frozen=True)
class ReasoningPlan:
    """Of a model that does not reason, or of a prompt that is no conversation, all is empty."""

    format: ReasoningFormat | None = None
    opened: bool = False  # the prompt ends inside it
    may_open: bool = False  # the model may open it by itself
    start: tuple[int, ...] = ()  # the tokens by which it does
    end: tuple[int, ...] = ()  # the tokens that are forced when its budget is used up


def plan_reasoning(
    found: ReasoningFormat | None, prompt: Prompt, request: GenerationRequest, tokenizer: Tokenizer
) -> ReasoningPlan:
    """`found` is the model's own format."""
    if prompt.raw:
        return ReasoningPlan()
    found = marked(found, request.thinking.start_marker, request.thinking.end_marker)
    if found is None:
        return ReasoningPlan()
    if found.implicit and request.thinking.enabled is False:
        found = replace(found, implicit=False)
    start = _start(found, tokenizer)
    return ReasoningPlan(
        found,
        opened=_opened(found, prompt),
        may_open=bool(start) and _may_open(found, prompt, request),
        start=start,
        end=tuple(tokenizer.encode(found.end)),
    )


def marked(found: ReasoningFormat | None, start: str | None, end: str | None) -> ReasoningFormat | None:
    """The format with other markers."""
    if start is None and end is None:
        return found
    return (found or formats.reasoning_format("think")).with_markers(start, end)


def _start(found: ReasoningFormat, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens by which the model may open its reasoning before an answer of a given form. A marker that begins with
    plain text is none that the model was taught, and a bracket would be read as its beginning."""
    tokens = tokenizer.encode(found.start)
    return tuple(tokens) if tokens and tokens[0] in tokenizer.pieces.added else ()


def _opened(found: ReasoningFormat, prompt: Prompt) -> bool:
    if prompt.continued:
        return prompt.continued.rfind(found.start) > prompt.continued.rfind(found.end)
    return found.open_in(prompt.text)


def _may_open(found: ReasoningFormat, prompt: Prompt, request: GenerationRequest) -> bool:
    if found.implicit or prompt.continued or request.thinking.enabled is False:
        return False
    return not found.open_in(prompt.text) and not prompt.text.rstrip().endswith(found.end.rstrip())
