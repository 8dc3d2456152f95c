"""How reasoning begins and ends in one request, by the model's format, the prompt and the request's fields."""

from dataclasses import dataclass, replace

from pippin.core.requests import GenerationRequest
from pippin.engines.language.prompt.rendering import RenderedPrompt
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.output import formats
from pippin.output.reasoning_format import ReasoningFormat


@dataclass(frozen=True)
class ReasoningPlan:
    """The reasoning of one answer. All fields are empty for a model without reasoning and for a raw prompt."""

    format: ReasoningFormat | None = None
    opened: bool = False  # the prompt ends inside reasoning
    may_open: bool = False  # the model may begin reasoning by itself
    start: tuple[int, ...] = ()  # the tokens that begin reasoning
    end: tuple[int, ...] = ()  # the tokens that are forced when the thinking budget is used up


def plan_reasoning(
    found: ReasoningFormat | None, prompt: RenderedPrompt, request: GenerationRequest, tokenizer: Tokenizer
) -> ReasoningPlan:
    """Plan the reasoning of an answer; `found` is the model's own format."""
    if prompt.raw:
        return ReasoningPlan()
    found = with_markers(found, request.thinking.start_marker, request.thinking.end_marker)
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


def with_markers(found: ReasoningFormat | None, start: str | None, end: str | None) -> ReasoningFormat | None:
    """The format with other markers, which make a format like `think` of a model without one."""
    if start is None and end is None:
        return found
    return (found or formats.reasoning_format("think")).with_markers(start, end)


def _start(found: ReasoningFormat, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens by which the model may begin reasoning before a structured answer, or none.

    A start marker counts only if its first token is an added one. The model was not taught a marker that begins with
    plain text, and a bracket of the answer would be taken for its beginning.
    """
    tokens = tokenizer.encode(found.start)
    return tuple(tokens) if tokens and tokens[0] in tokenizer.pieces.added else ()


def _opened(found: ReasoningFormat, prompt: RenderedPrompt) -> bool:
    """Whether the prompt, or the assistant's words that the answer continues, end inside reasoning."""
    if prompt.continued:
        return prompt.continued.rfind(found.start) > prompt.continued.rfind(found.end)
    return found.open_in(prompt.text)


def _may_open(found: ReasoningFormat, prompt: RenderedPrompt, request: GenerationRequest) -> bool:
    if found.implicit or prompt.continued or request.thinking.enabled is False:
        return False
    return not found.open_in(prompt.text) and not prompt.text.rstrip().endswith(found.end.rstrip())
