"""The tool `complete`: a language model answers a prompt."""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from pippin.api.answers.answer import Answer
from pippin.api.dialects.shared.engine_fields import Name, schema_format
from pippin.api.dialects.shared.media import image_of
from pippin.api.http.body import NobodyWaits, drawn_bytes
from pippin.api.mcp_tools.tool import Call, Done, Tool
from pippin.core import parameters as p
from pippin.core.completion import Completion, collect
from pippin.core.conversation import Message, Part, Text
from pippin.core.events import FinishReason
from pippin.core.requests import GenerationRequest, Sampling

MOST_TURNS: Final = 1024
MOST_IMAGES: Final = 32


class Turn(Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str


class CompleteArguments(Struct, kw_only=True, omit_defaults=True):
    prompt: Annotated[str, Meta(min_length=1, description="What is asked of the model.")]
    model: Annotated[Name, Meta(description="The id of a language model; `list_models` shows them.")] = (
        "default"
    )
    system: Annotated[str | None, Meta(description="How the model shall behave.")] = None
    messages: Annotated[
        Annotated[tuple[Turn, ...], Meta(max_length=MOST_TURNS)],
        Meta(description="Earlier turns of the conversation, the oldest first; the prompt comes after them."),
    ] = ()
    images: Annotated[
        Annotated[tuple[str, ...], Meta(max_length=MOST_IMAGES)],
        Meta(description="Pictures beside the prompt, for models that see: http(s) addresses or data: URIs."),
    ] = ()
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None, Meta(description="Most tokens of the answer.")
    ] = None
    temperature: Annotated[Annotated[float, p.TEMPERATURE.wire_bounds] | None, p.TEMPERATURE.described] = None
    top_p: Annotated[Annotated[float, p.TOP_P.wire_bounds] | None, p.TOP_P.described] = None
    seed: Annotated[Annotated[int, p.SEED.wire_bounds] | None, p.SEED.described] = None
    stop: Annotated[
        Annotated[tuple[str, ...], Meta(max_length=16)], Meta(description="Texts at which the answer ends.")
    ] = ()
    schema: Annotated[
        dict[str, Any] | None,
        Meta(description="A JSON schema; the answer is then JSON that fits it."),
    ] = None


class Completed(Struct, kw_only=True):
    text: str
    reasoning: Annotated[str | None, Meta(description="What the model thought before it answered.")]
    finish_reason: Annotated[FinishReason, Meta(description="`length`: the answer was cut off by a limit.")]
    model: str
    prompt_tokens: int
    completion_tokens: int


async def complete(call: Call, arguments: CompleteArguments) -> Done:
    handler = call.api.handler
    operation = await handler.prepare_generation(
        call.exchange, request_of(arguments), call.request.headers, operation="mcp_complete"
    )
    answer = Answer(operation, call.exchange, NobodyWaits(), handler.answers)

    def words() -> str:
        if answer.start_ms is None:
            return "The model reads the prompt."
        return f"{answer.completion_tokens} tokens so far."

    try:
        async with call.telling(answer.served, words):
            events = await answer.events()
    finally:
        await answer.close()
    completion = await handler.large.do(drawn_bytes(events), collect, events)
    completed = completed_of(completion, answer.served)
    return Done(result=completed, text=completed.text)


def request_of(arguments: CompleteArguments) -> GenerationRequest:
    """Raises `ServerError` for a picture or a schema that can't be understood."""
    pictures: tuple[Part, ...] = tuple(
        image_of(address, None, f"images[{place}]") for place, address in enumerate(arguments.images)
    )
    system = (Message("system", (Text(arguments.system),)),) if arguments.system else ()
    earlier = tuple(Message(turn.role, (Text(turn.content),)) for turn in arguments.messages)
    asked = Message("user", (*pictures, Text(arguments.prompt)))
    return GenerationRequest(
        model=arguments.model,
        messages=(*system, *earlier, asked),
        sampling=Sampling(temperature=arguments.temperature, top_p=arguments.top_p, seed=arguments.seed),
        stop=arguments.stop,
        max_tokens=arguments.max_tokens,
        output_format=None if arguments.schema is None else schema_format(arguments.schema, "schema"),
    )


def completed_of(completion: Completion, model: str) -> Completed:
    [choice] = completion.choices
    finished = choice.finished
    assert finished is not None
    return Completed(
        text=choice.text("text"),
        reasoning=choice.text("reasoning") or None,
        finish_reason=finished.reason,
        model=model,
        prompt_tokens=finished.usage.prompt_tokens,
        completion_tokens=finished.usage.completion_tokens,
    )


COMPLETE: Final = Tool(
    "complete",
    "Ask a language model",
    "A language model of this machine answers a prompt: in text, or in JSON that fits a schema.",
    CompleteArguments,
    Completed,
    complete,
    kind="language",
)
