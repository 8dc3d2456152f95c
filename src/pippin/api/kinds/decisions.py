"""Bodies and replies of `/v1/systemone` and `/v1/decisions`: TypeSafe's and mlx-vlm's form, which has a `state`,
OpenAI's, which has an `input`.

A decision model answers by its own scoring (`Decide`). A language model scores the labels of each question as answers
to it, and their probabilities are normalised over the question's labels.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from pippin.api.dialects.responses.dialect import NoHistory, items_of
from pippin.api.dialects.responses.items import ItemsReader, parts_of
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import BOOKKEEPING, Contract, called, invalid, unsupported
from pippin.api.dialects.shared.media import source_of_base64
from pippin.core.conversation import Image, Inline, Message, Part, Text
from pippin.core.decoding import from_json
from pippin.core.events import Decided, Usage
from pippin.core.requests import Decision, GenerationRequest, Thinking
from pippin.core.tasks import Decide

MOST_QUESTIONS: Final = 400
MOST_CRITERIA: Final = 255

SYSTEM: Final = (
    "Answer each question about what you are given with one of its labels and nothing else. Answer a question or a "
    "statement without labels with yes or no."
)
"""What a language model is told before the state. It is not told with each question, which would cost its tokens."""
YES_NO: Final[dict[str, Any]] = {"yes": None, "no": None}

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


class DecisionUsage(Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: dict[str, int] = field(default_factory=dict)
    output_tokens: int = 0
    output_tokens_details: dict[str, int] = field(default_factory=lambda: {"reasoning_tokens": 0})
    total_tokens: int

    @classmethod
    def of(cls, used: Usage) -> "DecisionUsage":
        details = {"cached_tokens": used.cached_tokens, "cache_write_tokens": used.stored_tokens}
        tokens = used.prompt_tokens
        return cls(input_tokens=tokens, input_tokens_details=details, total_tokens=tokens)


class DecisionReply(Struct, kw_only=True):
    model: str
    answers: dict[str, Any] | list[dict[str, Any]]
    usage: DecisionUsage


# What a decision model is asked


def task_of(fields: DecisionRequest) -> Decide:
    """Raises `ServerError` for what only language models take."""
    if fields.assets:
        raise unsupported("assets", "decision models are asked about text; name a language model that sees.")
    for name, asked in fields.questions.items():
        asked_of(asked, name)
        if asked.instructions is None:
            raise invalid(f"questions.{name}.instructions", "is required by decision models.")
    state, questions = (msgspec.json.encode(each).decode() for each in (fields.state, fields.questions))
    return Decide(state=state, questions=questions)


def decided_answers(fields: DecisionRequest, found: Decided, *, as_typesafe: bool) -> dict[str, Any]:
    """The answers of a decision model as mlx-vlm gives them, or in TypeSafe's form."""
    answers = from_json(found.answers, dict[str, Any])
    if not as_typesafe:
        return answers
    yes = {name: answer.get("probability", 0.0) for name, answer in answers.items()}
    return {
        name: typed_answer(
            asked_of(fields.questions[name], name),
            list(answer.get("probabilities", {0: yes[name], 1: 1 - yes[name]}).values()),
        )
        for name, answer in answers.items()
    }


# What a language model is asked


@dataclass(frozen=True)
class Asked:
    """A question, in whatever form it came, and its labels, each with what it means: a text, JSON, or None where the
    label says all."""

    kind: Literal["choice", "score", "noul", "multi_label"]
    said: str
    labels: dict[str, Any]
    threshold: float = 0.5  # of `multi_label`

    @property
    def decisions(self) -> list[Decision]:
        """What is scored: the labels against each other, or yes against no for each label that may go with others."""
        lines = [self.said.strip()] if self.said.strip() else []
        shown = [f"{label}: {told(each)}" if each else label for label, each in self.labels.items()]
        if self.kind == "multi_label":
            return [Decision("\n".join([*lines, f"Does it apply? {each}"]), tuple(YES_NO)) for each in shown]
        if any(self.labels.values()):
            lines += shown
        elif self.labels != YES_NO:
            lines.append(f"Labels: {', '.join(self.labels)}")
        return [Decision("\n".join(lines), tuple(self.labels))]

    def chances(self, scored: Iterator[Sequence[float]]) -> list[float]:
        """The probability of each label. Those of labels that exclude each other add up to 1. `scored` gives the log
        probabilities of the next decisions."""
        found = [chances_of(next(scored)) for _ in self.decisions]
        return [yes for yes, _ in found] if self.kind == "multi_label" else found[0]


def about_state(fields: DecisionRequest, files: Mapping[str, bytes]) -> tuple[GenerationRequest, list[Asked]]:
    """The request to score the labels of all questions. `files` are the parts of a form. Raises `ServerError`."""
    for name, asked in fields.questions.items():
        given = json.dumps([asked.instructions, asked.criteria], ensure_ascii=False)
        if placeholder := next((each for each in fields.assets or () if written(each) in given), None):
            raise unsupported(
                f"questions.{name}", f"{placeholder!r} stands for a picture; put it into `state`."
            )
    found = [asked_of(asked, name) for name, asked in fields.questions.items()]
    message = Message("user", _state_parts(fields, files))
    return _scoring(fields.model, [message], found, "state"), found


def about_input(fields: OpenAIDecisionRequest) -> tuple[GenerationRequest, list[Asked]]:
    """The same in OpenAI's form."""
    found = [_listed(asked, f"questions[{number}]") for number, asked in enumerate(fields.questions)]
    reader = ItemsReader(NoHistory().item, complete=True)
    reader.read(items_of(fields.input))
    if reader.skipped or reader.tools:
        raise unsupported("input", "only messages, calls of tools and their outputs can be decided about.")
    if not reader.messages:
        raise invalid("input", "must not be empty.")
    return _scoring(fields.model, reader.messages, found, "input"), found


def _scoring(
    model: str, messages: Sequence[Message], asked: Sequence[Asked], field: str
) -> GenerationRequest:
    """`field`: the body's name for the messages."""
    decisions = tuple(decision for each in asked for decision in each.decisions)
    if len(decisions) > MOST_QUESTIONS:
        raise invalid("questions", f"must be at most {MOST_QUESTIONS}; each label of a `multi_label` is one.")
    return GenerationRequest(
        model=model,
        messages=(Message("system", (Text(SYSTEM),)), *messages),
        decisions=decisions,
        max_tokens=0,
        thinking=Thinking(enabled=False),
        overflow="error",
        names=called(messages=field),
    )


def told(value: Told) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def written(name: str) -> str:
    """A name as it stands inside of a text in JSON."""
    return json.dumps(name, ensure_ascii=False)[1:-1]


def asked_of(asked: QuestionFields, name: str) -> Asked:
    """Raises `ServerError` for a question without what its type needs."""
    at, said = f"questions.{name}", told(asked.instructions or "")
    if asked.threshold is not None and asked.type != "multi_label":
        raise unsupported(f"{at}.threshold", "it belongs to `multi_label`.")
    match asked.type, asked.criteria:
        case ("choice" | "multi_label") as kind, dict(criteria) if criteria:
            return Asked(kind, said, criteria, 0.5 if asked.threshold is None else asked.threshold)
        case (("choice" | "multi_label"), tuple(labels)) if labels and all(
            isinstance(each, str) and each for each in labels
        ):
            return asked_of(replace(asked, criteria=dict.fromkeys(map(told, labels))), name)
        case "score", tuple(levels) if levels:
            return Asked("score", said, {str(number): each for number, each in enumerate(levels)})
        case (("noul" | "bool"), None):
            return _yes_or_no(said, {}, at)
        case (("noul" | "bool"), dict(criteria)) if criteria.keys() <= {"true", "false"}:
            return _yes_or_no(said, criteria, at)
        case "box", _:
            raise unsupported(f"{at}.type", NO_BOX)
        case kind, _:
            raise invalid(f"{at}.criteria", CRITERIA[kind])


def _yes_or_no(said: str, meant: Mapping[str, Any], at: str) -> Asked:
    if not said.strip() and not any(meant.values()):
        raise invalid(f"{at}.instructions", "is required.")
    return Asked("noul", said, {"yes": meant.get("true"), "no": meant.get("false")})


NO_BOX: Final = "places in pictures are not looked for here; ask a `choice` about where something is."
CRITERIA: Final = {
    **dict.fromkeys(
        ("choice", "multi_label"), "must be an object of labels and what they mean, or a list of labels."
    ),
    "score": "must be a list of levels.",
    **dict.fromkeys(("noul", "bool"), "must be an object with `true`, `false` or both."),
}


def _state_parts(fields: DecisionRequest, files: Mapping[str, bytes]) -> tuple[Part, ...]:
    """The state as parts: assets in the places of the words that stand for them."""
    parts: list[Part] = [Text(told(fields.state))]
    for name, asset in (fields.assets or {}).items():
        mark = name if isinstance(fields.state, str) else written(name)
        image, found = _image(asset, files, f"assets.{name}"), list[Part]()
        for part in parts:
            first, *others = part.text.split(mark) if isinstance(part, Text) else ("",)
            found += [Text(first), *(each for other in others for each in (image, Text(other)))]
            found += [] if isinstance(part, Text) else [part]
        if image not in found:
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


def _listed(asked: ListedQuestion, at: str) -> Asked:
    parts, _ = parts_of(asked.instructions, f"{at}.instructions")
    texts = [part.text for part in parts if isinstance(part, Text)]
    if len(texts) < len(parts):
        raise unsupported(f"{at}.instructions", "pictures belong into `input`.")
    said = "\n".join(texts)
    wanted = {"predicate": None, "choice": "choices", "score": "levels"}[asked.type]
    for name, options in {"choices": asked.choices, "levels": asked.levels}.items():
        if (options is None) == (name == wanted):
            raise invalid(
                f"{at}.{name}", f"{'is required for' if name == wanted else 'belongs to no'} {asked.type}."
            )
    if asked.type == "predicate":
        return _yes_or_no(said, {}, at)
    options = asked.choices or asked.levels or ()
    labels = dict(zip(_names(options), (each.description for each in options), strict=True))
    if len(labels) < len(options):
        raise invalid(f"{at}.{wanted}", "must be different from each other.")
    return Asked(asked.type, said, labels)


def _names(options: Sequence[Option | Level]) -> list[str]:
    values = [each.label if isinstance(each, Level) else each.value for each in options]
    plain = [each if isinstance(each, str) else str(each).lower() for each in values]
    return [
        # A string is told apart from a boolean that is written alike.
        json.dumps(text) if isinstance(value, str) and plain.count(text) > 1 else text
        for value, text in zip(values, plain, strict=True)
    ]


# Answers of a language model


def chances_of(logprobs: Sequence[float]) -> list[float]:
    """Probabilities that add up to 1, in the proportions of these log probabilities."""
    weights = [math.exp(each - max(logprobs)) for each in logprobs]
    return [each / sum(weights) for each in weights]


def confidence_of(chances: Sequence[float]) -> float:
    """1 for a certain answer, 0 where all are alike: 1 less the entropy, as a share of the greatest possible."""
    entropy = -sum(each * math.log(each) for each in chances if each > 0)
    return max(0.0, 1 - entropy / math.log(len(chances))) if len(chances) > 1 else 1.0


def expected(chances: Sequence[float]) -> float:
    return sum(level * chance for level, chance in enumerate(chances))


def typed_answer(asked: Asked, chances: Sequence[float]) -> dict[str, Any]:
    """An answer in TypeSafe's form."""
    if asked.kind == "noul":
        return {"type": "noul", "noul": chances[0]}
    probabilities = dict(zip(asked.labels, chances, strict=True))
    found: dict[str, Any] = {"type": asked.kind, "probabilities": probabilities}
    if asked.kind == "multi_label":
        chosen = [label for label, chance in probabilities.items() if chance >= asked.threshold]
        return {**found, "multi_label": chosen}
    found["confidence"] = confidence_of(chances)
    if asked.kind == "score":
        return {**found, "score": expected(chances), "legend": asked.labels}
    return {**found, "choice": max(zip(chances, asked.labels, strict=True))[1]}


def valued_answer(asked: Asked, chances: Sequence[float]) -> dict[str, Any]:
    """An answer in the form of mlx-vlm's server."""
    if asked.kind == "noul":
        return {"type": "bool", "value": chances[0] >= 0.5, "probability": chances[0], "metadata": {}}
    answer = typed_answer(asked, chances)
    metadata = {name: answer.pop(name) for name in ("confidence", "legend") if name in answer}
    return {"value": answer.pop(asked.kind), **answer, "metadata": metadata}


def listed_answer(given: ListedQuestion, chances: Sequence[float]) -> dict[str, Any]:
    """An answer in OpenAI's form."""
    found: dict[str, Any] = {"type": given.type, "name": given.name}
    if given.type == "predicate":
        return {**found, "probability": chances[0]}
    found["confidence"] = confidence_of(chances)
    if given.levels is not None:
        names = [{"label": each.label, "value": number} for number, each in enumerate(given.levels)]
        found["score"] = expected(chances)
    else:
        names = [{"value": each.value} for each in given.choices or ()]
        found["choice"] = names[list(chances).index(max(chances))]["value"]
    pairs = zip(names, chances, strict=True)
    return {**found, "probabilities": [{**name, "probability": chance} for name, chance in pairs]}
