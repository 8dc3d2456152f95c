"""The body and the reply of `/v1/decisions`, in the form of mlx-vlm's server."""

import json
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import BOOKKEEPING, Contract, invalid
from pippin.core.decoding import from_json
from pippin.core.events import Decided
from pippin.core.tasks import Decide, Question

MOST_QUESTIONS: Final = 64
MOST_CRITERIA: Final = 255

Label = Annotated[str, Meta(min_length=1)]


class QuestionFields(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    instructions: Annotated[str, Meta(description="What is asked.")]
    type: Annotated[
        Literal["choice", "score", "bool", "noul", "multi_label"],
        Meta(description="What kind of answer; models take different ones."),
    ] = "choice"
    criteria: Annotated[
        Annotated[tuple[Label, ...], Meta(max_length=MOST_CRITERIA)]
        | Annotated[dict[Label, str | None], Meta(max_length=MOST_CRITERIA)]
        | None,
        Meta(description="Labels, or levels of a score, or an object of labels and what they mean."),
    ] = None
    threshold: Annotated[float, Meta(ge=0, le=1, description="Of `multi_label`.")] | None = None


class DecisionRequest(Struct, kw_only=True, omit_defaults=True):
    state: Annotated[
        str | dict[str, Any] | list[Any],
        Meta(description="What is decided about: a text, or JSON. What is too long is cut by the model."),
    ]
    questions: Annotated[
        Annotated[dict[Label, QuestionFields], Meta(min_length=1, max_length=MOST_QUESTIONS)],
        Meta(description="Questions by name."),
    ]
    model: Annotated[Name, Meta(description="Name of the model.")] = "default"


CONTRACT: Final = Contract(
    DecisionRequest,
    {"user": BOOKKEEPING},
    {
        "images": "decisions are made about text here; leave them out.",
        "audio": "decisions are made about text here; leave it out.",
    },
)
CONTRACTS: Final = {"POST /v1/decisions": CONTRACT}


class DecisionUsage(Struct, kw_only=True):
    input_tokens: int
    output_tokens: int = 0


class DecisionReply(Struct, kw_only=True):
    model: str
    answers: dict[str, Any]
    usage: DecisionUsage


def task_of(fields: DecisionRequest) -> Decide:
    questions = tuple(
        Question(
            name=name,
            kind=asked.type,
            instructions=asked.instructions,
            criteria=asked.criteria,
            threshold=asked.threshold,
        )
        for name, asked in fields.questions.items()
    )
    for question in questions:
        if question.kind in ("choice", "score", "multi_label") and not question.criteria:
            raise invalid(f"questions.{question.name}.criteria", f"is required for a {question.kind}.")
    return Decide(state=json.dumps(fields.state, ensure_ascii=False), questions=questions)


def reply_of(model: str, found: Decided) -> DecisionReply:
    return DecisionReply(
        model=model,
        answers=from_json(found.answers, dict[str, Any]),
        usage=DecisionUsage(input_tokens=found.used_tokens),
    )
