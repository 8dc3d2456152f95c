"""Bodies and replies of `/v1/systemone` and `/v1/decisions`: TypeSafe's and mlx-vlm's form, which has a `state`, and
OpenAI's, which has an `input`.

A decision model answers by its own scoring (`Decide`). A language model scores the labels of each question as answers
to it, and their probabilities are normalised over the question's labels.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta, Struct, field

from pippin.api.dialects.responses.dialect import NoHistory, items_of
from pippin.api.dialects.responses.items import ItemsReader, parts_of
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import BOOKKEEPING, Contract, called, invalid, unsupported
from pippin.api.dialects.shared.media import source_of_base64
from pippin.core.conversation import Image, Inline, Message, Part, Text
from pippin.core.decoding import from_json
from pippin.core.events import Decided, Usage
from pippin.core.requests import Decision, GenerationRequest, Thinking
from pippin.core.tasks import Decide, Question

MOST_QUESTIONS: Final = 400
MOST_CRITERIA: Final = 255

SYSTEM: Final = (
    "Answer each question about what you are given with one of its labels and nothing else. Answer a question or a "
    "statement without labels with yes or no."
)
"""What a language model is told before the state. It is not told with each question, which would cost its tokens."""
YES_NO: Final = ("yes", "no")

Label = Annotated[str, Meta(min_length=1)]
Told = str | dict[str, Any] | list[Any]
"""A text, or JSON that is shown to the model as text."""


class Asset(Struct, kw_only=True, forbid_unknown_fields=True):
    """A picture: base64, or the name of a part of the form."""

    type: Literal["image"] = "image"
    format: Literal["png", "jpg", "jpeg"] | None = None
    data_base64: str | None = None
    part: str | None = None


class QuestionFields(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    instructions: Annotated[Told | None, Meta(description="What is asked.")] = None
    type: Annotated[
        Literal["choice", "score", "bool", "noul", "multi_label", "box"],
        Meta(description="What kind of answer; models take different ones."),
    ] = "choice"
    criteria: Annotated[
        Annotated[tuple[Told, ...], Meta(max_length=MOST_CRITERIA)]
        | Annotated[dict[Label, Told | None], Meta(max_length=MOST_CRITERIA)]
        | None,
        Meta(description="Labels, or levels of a score, or an object of labels and what they mean."),
    ] = None
    threshold: Annotated[float, Meta(ge=0, le=1, description="Of `multi_label`.")] | None = None


class DecisionRequest(Struct, kw_only=True, omit_defaults=True):
    state: Annotated[
        Told,
        Meta(description="What is decided about: a text, or JSON. Decision models cut what is too long."),
    ]
    questions: Annotated[
        Annotated[dict[Label, QuestionFields], Meta(min_length=1, max_length=MOST_QUESTIONS)],
        Meta(description="Questions by name."),
    ]
    model: Annotated[Name, Meta(description="Name of the model.")] = "default"
    assets: Annotated[
        Annotated[dict[Label, Asset], Meta(min_length=1, max_length=64)] | None,
        Meta(description="Pictures by the words that stand for them in `state`."),
    ] = None


class Option(Struct, kw_only=True, forbid_unknown_fields=True):
    """An answer to choose."""

    value: Label | bool
    description: str | None = None

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else str(self.value).lower()


class Level(Struct, kw_only=True, forbid_unknown_fields=True):
    """A level of a score."""

    label: Label
    description: str | None = None


class ListedQuestion(Struct, kw_only=True, forbid_unknown_fields=True):
    """A question of OpenAI's."""

    type: Literal["predicate", "choice", "score"]
    instructions: str | list[dict[str, Any]]
    name: str | None = None
    choices: Annotated[tuple[Option, ...], Meta(min_length=2, max_length=MOST_CRITERIA)] | None = None
    levels: Annotated[tuple[Level, ...], Meta(min_length=2, max_length=MOST_CRITERIA)] | None = None


class OpenAIDecisionRequest(Struct, kw_only=True, omit_defaults=True):
    input: Annotated[
        str | list[dict[str, Any]],
        Meta(description="What is decided about: a text, or items as of a response."),
    ]
    questions: Annotated[
        Annotated[tuple[ListedQuestion, ...], Meta(min_length=1, max_length=MOST_QUESTIONS)],
        Meta(description="Predicates, choices and scores."),
    ]
    model: Annotated[Name, Meta(description="Name of the model.")] = "default"


CONTRACT: Final = Contract(
    DecisionRequest,
    {"user": BOOKKEEPING},
    {
        "images": "give pictures in `assets`.",
        "audio": "decisions are made about text and pictures here; leave it out.",
    },
)
OPENAI: Final = Contract(
    OpenAIDecisionRequest,
    {
        "prompt_cache_key": "A hint; the prefix cache keeps every prompt.",
        "prompt_cache_options": "A hint; the prefix cache keeps every prompt.",
        "safety_identifier": BOOKKEEPING,
    },
    left_open=frozenset({"input"}),
)
CONTRACTS: Final = {
    "POST /v1/systemone, /v1/decisions (with `state`)": CONTRACT,
    "POST /v1/decisions (with `input`)": OPENAI,
}


class CachedDetails(Struct, kw_only=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class WrittenDetails(Struct, kw_only=True):
    reasoning_tokens: int = 0


class DecisionUsage(Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: CachedDetails = field(default_factory=CachedDetails)
    output_tokens: int = 0
    output_tokens_details: WrittenDetails = field(default_factory=WrittenDetails)
    total_tokens: int = 0

    @classmethod
    def of(cls, used: Usage) -> "DecisionUsage":
        details = CachedDetails(cached_tokens=used.cached_tokens, cache_write_tokens=used.stored_tokens)
        return cls(
            input_tokens=used.prompt_tokens, input_tokens_details=details, total_tokens=used.prompt_tokens
        )


class DecisionReply(Struct, kw_only=True):
    model: str
    answers: dict[str, Any] | list[dict[str, Any]]
    usage: DecisionUsage


# What a decision model is asked


def task_of(fields: DecisionRequest) -> Decide:
    """Raises `ServerError` for what only language models take."""
    if fields.assets:
        raise unsupported("assets", "decision models are asked about text; name a language model that sees.")
    questions = []
    for name, asked in fields.questions.items():
        at = f"questions.{name}"
        if asked.type == "box":
            raise unsupported(f"{at}.type", NO_BOX)
        if asked.instructions is None:
            raise invalid(f"{at}.instructions", "is required by decision models.")
        if asked.type in ("choice", "score", "multi_label") and not asked.criteria:
            raise invalid(f"{at}.criteria", f"is required for a {asked.type}.")
        questions.append(
            Question(
                name=name,
                kind=asked.type,
                instructions=told(asked.instructions),
                criteria=_told_criteria(asked.criteria),
                threshold=asked.threshold,
            )
        )
    return Decide(state=json.dumps(fields.state, ensure_ascii=False), questions=tuple(questions))


def _told_criteria(criteria: tuple[Told, ...] | dict[str, Told | None] | None) -> Any:
    match criteria:
        case dict():
            return {name: None if meaning is None else told(meaning) for name, meaning in criteria.items()}
        case None:
            return None
        case _:
            return tuple(map(told, criteria))


def decided_answers(fields: DecisionRequest, found: Decided, *, as_typesafe: bool) -> dict[str, Any]:
    """The answers of a decision model as mlx-vlm gives them, or in TypeSafe's form."""
    answers = from_json(found.answers, dict[str, Any])
    if not as_typesafe:
        return answers
    translated = {}
    for name, answer in answers.items():
        yes = answer.get("probability")
        chances = [yes, 1 - yes] if yes is not None else list(answer.get("probabilities", {}).values())
        translated[name] = typed_answer(fields.questions[name], chances)
    return translated


# What a language model is asked


class Options(NamedTuple):
    """The labels of a question, and what they mean; no meanings where the labels say all."""

    labels: tuple[str, ...]
    meanings: tuple[str | None, ...] = ()


def request_of(fields: DecisionRequest, files: Mapping[str, bytes]) -> GenerationRequest:
    """The request to score the labels of all questions. `files` are the parts of a form. Raises `ServerError`."""
    decisions = []
    for name, asked in fields.questions.items():
        options = _options(asked, f"questions.{name}")
        said = "" if asked.instructions is None else told(asked.instructions)
        labels = () if options.labels == YES_NO else options.labels
        shown = [said, *labels, *(meaning or "" for meaning in options.meanings)]
        if placeholder := next(
            (each for each in fields.assets or () if any(each in text for text in shown)), None
        ):
            raise unsupported(
                f"questions.{name}", f"{placeholder!r} stands for a picture; put it into `state`."
            )
        decisions.append(_decision(said, options, f"questions.{name}"))
    message = Message("user", _state_parts(fields, files))
    return _scoring(fields.model, (message,), decisions, "state")


def openai_request(fields: OpenAIDecisionRequest) -> GenerationRequest:
    """The same in OpenAI's form."""
    decisions = []
    for number, asked in enumerate(fields.questions):
        at = f"questions[{number}]"
        parts, _ = parts_of(asked.instructions, f"{at}.instructions")
        texts = [part.text for part in parts if isinstance(part, Text)]
        if len(texts) < len(parts):
            raise unsupported(f"{at}.instructions", "pictures belong into `input`.")
        decisions.append(_decision("\n".join(texts), _listed_options(asked, at), at))
    reader = ItemsReader(NoHistory().item, complete=True)
    reader.read(items_of(fields.input))
    if reader.skipped or reader.tools:
        raise unsupported("input", "only messages, calls of tools and their outputs can be decided about.")
    if not reader.messages:
        raise invalid("input", "must not be empty.")
    return _scoring(fields.model, tuple(reader.messages), decisions, "input")


def _scoring(
    model: str, messages: tuple[Message, ...], decisions: Sequence[Decision], field: str
) -> GenerationRequest:
    """`field`: the body's name for the messages."""
    return GenerationRequest(
        model=model,
        messages=(Message("system", (Text(SYSTEM),)), *messages),
        decisions=tuple(decisions),
        max_tokens=0,
        thinking=Thinking(enabled=False),
        overflow="error",
        names=called(messages=field),
    )


def told(value: Told) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _decision(said: str, options: Options, at: str) -> Decision:
    lines = [said.strip()] if said.strip() else []
    if any(options.meanings):
        pairs = zip(options.labels, options.meanings, strict=True)
        lines += [f"{label}: {meaning}" if meaning else label for label, meaning in pairs]
    elif options.labels != YES_NO:
        lines.append(f"Labels: {', '.join(options.labels)}")
    if not lines:
        raise invalid(f"{at}.instructions", "is required.")
    return Decision("\n".join(lines), options.labels)


def _options(asked: QuestionFields, at: str) -> Options:
    criteria = asked.criteria
    if asked.threshold is not None:
        raise unsupported(f"{at}.threshold", "it belongs to `multi_label`.")
    match asked.type, criteria:
        case "choice", dict() if criteria:
            return Options(
                tuple(criteria), tuple(None if each is None else told(each) for each in criteria.values())
            )
        case "choice", tuple() if criteria and all(isinstance(each, str) and each for each in criteria):
            return Options(tuple(map(told, criteria)))
        case "score", tuple() if criteria:
            return Options(tuple(map(str, range(len(criteria)))), tuple(map(told, criteria)))
        case "noul" | "bool", None:
            return Options(YES_NO)
        case "noul" | "bool", dict() if criteria.keys() <= {"true", "false"}:
            meant = [criteria.get(name) for name in ("true", "false")]
            return Options(YES_NO, tuple(None if each is None else told(each) for each in meant))
        case "multi_label", _:
            raise unsupported(f"{at}.type", "a language model chooses one label; ask a `noul` for each.")
        case "box", _:
            raise unsupported(f"{at}.type", NO_BOX)
        case kind, _:
            raise invalid(f"{at}.criteria", CRITERIA[kind])


NO_BOX: Final = "places in pictures are not looked for here; ask a `choice` about where something is."
CRITERIA: Final = {
    "choice": "must be an object of labels and what they mean, or a list of labels.",
    "score": "must be a list of levels.",
    "noul": "must be an object with `true`, `false` or both.",
    "bool": "must be an object with `true`, `false` or both.",
}


def _state_parts(fields: DecisionRequest, files: Mapping[str, bytes]) -> tuple[Part, ...]:
    """The state as parts: assets in the places of the words that stand for them."""
    parts: list[Part] = [Text(told(fields.state))]
    for name, asset in (fields.assets or {}).items():
        written = name if isinstance(fields.state, str) else json.dumps(name, ensure_ascii=False)[1:-1]
        image, found = _image(asset, files, f"assets.{name}"), list[Part]()
        for part in parts:
            pieces = part.text.split(written) if isinstance(part, Text) else []
            found += [part] if not pieces else [Text(pieces[0])]
            for piece in pieces[1:]:
                found += [image, Text(piece)]
        if found == parts:
            raise invalid(f"assets.{name}", "is not in `state`: write its name where the picture belongs.")
        parts = found
    kept = tuple(part for part in parts if not isinstance(part, Text) or part.text)
    if not kept:
        raise invalid("state", "must not be empty.")
    return kept


def _image(asset: Asset, files: Mapping[str, bytes], at: str) -> Image:
    if asset.part is not None:
        if asset.part not in files:
            raise invalid(f"{at}.part", f"names no file of the form: {asset.part!r}.")
        return Image(Inline(files[asset.part]), field=at)
    if asset.data_base64 is None:
        raise invalid(f"{at}.data_base64", "is required.")
    return Image(source_of_base64(asset.data_base64, f"{at}.data_base64"), field=at)


def _listed_options(asked: ListedQuestion, at: str) -> Options:
    wanted = {"predicate": None, "choice": "choices", "score": "levels"}[asked.type]
    for name in ("choices", "levels"):
        given = getattr(asked, name)
        if (given is None) == (name == wanted):
            raise invalid(
                f"{at}.{name}",
                f"{'is required for' if name == wanted else 'does not belong to'} a {asked.type}.",
            )
    if asked.choices is not None:
        texts = [each.text for each in asked.choices]
        labels = tuple(
            # A string is told apart from a boolean that is written alike.
            json.dumps(each.value)
            if isinstance(each.value, str) and texts.count(each.text) > 1
            else each.text
            for each in asked.choices
        )
        options = Options(labels, tuple(each.description for each in asked.choices))
    elif asked.levels is not None:
        options = Options(tuple(x.label for x in asked.levels), tuple(x.description for x in asked.levels))
    else:
        return Options(YES_NO)
    if len(set(options.labels)) < len(options.labels):
        raise invalid(f"{at}.{wanted}", "must be different from each other.")
    return options


# Answers of a language model


def chances_of(logprobs: Sequence[float]) -> list[float]:
    """Probabilities that add up to 1, in the proportions of these log probabilities."""
    most = max(logprobs)
    weights = [math.exp(each - most) for each in logprobs]
    return [each / sum(weights) for each in weights]


def confidence_of(chances: Sequence[float]) -> float:
    """1 for a certain answer, 0 where all are alike: 1 less the entropy, as a share of the greatest possible."""
    if len(chances) < 2:
        return 1.0
    entropy = -sum(each * math.log(each) for each in chances if each > 0)
    return max(0.0, 1 - entropy / math.log(len(chances)))


def expected(chances: Sequence[float]) -> float:
    return sum(level * chance for level, chance in enumerate(chances))


def typed_answer(asked: QuestionFields, chances: Sequence[float]) -> dict[str, Any]:
    """An answer in TypeSafe's form."""
    if asked.type in ("noul", "bool"):
        return {"type": "noul", "noul": chances[0]}
    criteria, confidence = asked.criteria or (), confidence_of(chances)
    if asked.type == "score":
        legend = {str(level): each for level, each in enumerate(criteria)}
        probabilities = dict(zip(legend, chances, strict=True))
        rest = {"confidence": confidence, "legend": legend, "probabilities": probabilities}
        return {"type": "score", "score": expected(chances), **rest}
    probabilities = dict(zip(map(str, criteria), chances, strict=True))
    best = max(probabilities, key=probabilities.__getitem__)
    return {"type": "choice", "choice": best, "confidence": confidence, "probabilities": probabilities}


def valued_answer(asked: QuestionFields, chances: Sequence[float]) -> dict[str, Any]:
    """An answer in the form of mlx-vlm's server."""
    answer = typed_answer(asked, chances)
    if asked.type in ("noul", "bool"):
        return {"type": "bool", "value": chances[0] >= 0.5, "probability": chances[0], "metadata": {}}
    metadata = {name: answer[name] for name in ("confidence", "legend") if name in answer}
    value = answer[asked.type]
    return {
        "type": asked.type,
        "value": value,
        "probabilities": answer["probabilities"],
        "metadata": metadata,
    }


def listed_answer(asked: ListedQuestion, chances: Sequence[float]) -> dict[str, Any]:
    """An answer in OpenAI's form."""
    told: dict[str, Any] = {"type": asked.type, "name": asked.name}
    if asked.type == "predicate":
        return {**told, "probability": chances[0]}
    told["confidence"] = confidence_of(chances)
    if asked.levels is not None:
        pairs = enumerate(zip(asked.levels, chances, strict=True))
        found = [
            {"label": each.label, "probability": chance, "value": number} for number, (each, chance) in pairs
        ]
        return {**told, "score": expected(chances), "probabilities": found}
    choices = [each.value for each in asked.choices or ()]
    found = [{"value": value, "probability": chance} for value, chance in zip(choices, chances, strict=True)]
    return {**told, "choice": choices[list(chances).index(max(chances))], "probabilities": found}
