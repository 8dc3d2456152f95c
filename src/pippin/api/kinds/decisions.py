"""`/v1/systemone` and `/v1/decisions`: TypeSafe's and mlx-vlm's form, which has a `state`,
OpenAI's, which has an `input`.

A decision model answers by its own scoring (`Decide`). A language model scores the labels of each question as answers
to it, and their probabilities are normalised over the question's labels.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Final, Literal, NamedTuple
from uuid import uuid4

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.dialects.base import History
from pippin.api.dialects.responses.answer import ResponseUsage, usage_of
from pippin.api.dialects.responses.dialect import items_of
from pippin.api.dialects.responses.items import ItemsReader, parts_of
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import (
    Contract,
    about,
    called,
    decode_json,
    invalid,
    unsupported,
    without_effect,
)
from pippin.api.dialects.shared.media import source_of_base64
from pippin.api.http.forms import is_form
from pippin.api.routing import Api, both, json_reply
from pippin.core.conversation import Image, Inline, Message, Part, Text
from pippin.core.decoding import from_json
from pippin.core.errors import ServerError
from pippin.core.events import Decided, Finished, Scored, Usage
from pippin.core.models import summed
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
EDGES: Final = "top", "bottom", "left", "right"
PLACES: Final = tuple(f"{number:02}" for number in range(100))
BOX: Final = (
    "Labels: 00, the top or left of the picture, to 99, its end. Where is the {} edge of the box around it?"
)

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
    instructions: Annotated[Told | None, about("What is asked.")] = None
    type: Annotated[
        Literal["choice", "score", "bool", "noul", "multi_label", "box"],
        about("What kind of answer; models take different ones."),
    ] = "choice"
    criteria: Annotated[
        Annotated[tuple[Told, ...], Meta(max_length=MOST_CRITERIA)]
        | Annotated[dict[Label, Told | None], Meta(max_length=MOST_CRITERIA)]
        | None,
        about("Labels, or levels of a score, or an object of labels and what they mean."),
    ] = None
    threshold: Annotated[float, about("Of `multi_label`.", ge=0, le=1)] | None = None


class DecisionRequest(Struct, kw_only=True, omit_defaults=True):
    state: Annotated[
        Told,
        about("What is decided about: a text, or JSON. Decision models cut what is too long."),
    ]
    questions: Annotated[
        Annotated[dict[Label, QuestionFields], Meta(min_length=1, max_length=MOST_QUESTIONS)],
        about("Questions by name."),
    ]
    model: Annotated[Name, about("Name of the model.")] = "default"
    assets: Annotated[
        Annotated[dict[Label, Asset], Meta(min_length=1, max_length=64)] | None,
        about("Pictures by the words that stand for them in `state` and questions."),
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
        about("What is decided about: a text, or items as of a response."),
    ]
    questions: Annotated[
        Annotated[tuple[ListedQuestion, ...], Meta(min_length=1, max_length=MOST_QUESTIONS)],
        about("Predicates, choices and scores."),
    ]
    model: Annotated[Name, about("Name of the model.")] = "default"


WITHOUT_EFFECT: Final = without_effect(__name__, "decisions")
CONTRACT: Final = Contract(DecisionRequest, *WITHOUT_EFFECT)
OPENAI: Final = Contract(OpenAIDecisionRequest, *WITHOUT_EFFECT, left_open=frozenset({"input"}))
CONTRACTS: Final = {
    "POST /v1/systemone, /v1/decisions (with `state`)": CONTRACT,
    "POST /v1/decisions (with `input`)": OPENAI,
}


class DecisionReply(Struct, kw_only=True):
    model: str
    answers: dict[str, Any] | list[dict[str, Any]]
    usage: ResponseUsage


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


class Asked(Struct, frozen=True):
    """A question, in whatever form it came, and its labels, each with what it means: a text, JSON, or None where the
    label says all."""

    kind: Literal["choice", "score", "noul", "multi_label", "box"]
    said: str
    labels: dict[str, Any]
    threshold: float = 0.5  # of `multi_label`

    @property
    def decisions(self) -> list[Decision]:
        """What is scored: the labels against each other, yes against no for each label that may go with others, or the
        places of each edge of a box."""
        lines = [self.said.strip()] if self.said.strip() else []
        if self.kind == "box":
            return [Decision("\n".join([*lines, BOX.format(edge)]), PLACES) for edge in EDGES]
        shown = [f"{label}: {told(each)}" if each else label for label, each in self.labels.items()]
        if self.kind == "multi_label":
            return [Decision("\n".join([*lines, f"Does it apply? {each}"]), tuple(YES_NO)) for each in shown]
        # Before the question: questions often have the same labels, and what they begin with is computed once.
        if any(self.labels.values()):
            lines = [*shown, *lines]
        elif self.labels != YES_NO:
            lines = [f"Labels: {', '.join(self.labels)}", *lines]
        return [Decision("\n".join(lines), tuple(self.labels))]

    def chances(self, scored: Mapping[Decision, Sequence[float]]) -> list[float]:
        """The probability of each label, or the place of each edge of a box from 0 to 1. Probabilities of labels that
        exclude each other add up to 1. `scored` are log probabilities."""
        found = []
        for each in self.decisions:
            weights = [math.exp(logprob - max(scored[each])) for logprob in scored[each]]
            found.append([weight / sum(weights) for weight in weights])
        if self.kind == "box":
            return [expected(each) / (len(each) - 1) for each in found]
        return [yes for yes, _ in found] if self.kind == "multi_label" else found[0]


class Wanted(NamedTuple):
    """What a language model is to score: a request for all questions of text, and one for each beginning of others."""

    requests: list[GenerationRequest]
    asked: list[Asked]
    decisions: list[Decision]  # of the requests in their order, before pictures were put into them

    def chances(self, scored: Iterable[Sequence[Sequence[float]]]) -> list[list[float]]:
        """What `Asked.chances` gives for each question. `scored`: the log probabilities that answer each request."""
        found = dict(zip(self.decisions, chain(*scored), strict=True))
        return [each.chances(found) for each in self.asked]


def about_state(fields: DecisionRequest, files: Mapping[str, bytes]) -> Wanted:
    """The requests to score the labels of all questions. `files` are the parts of a form. Raises `ServerError`."""
    pictured = fields.assets is not None
    asked = [asked_of(each, name, pictured=pictured) for name, each in fields.questions.items()]
    found = {name: _image(asset, files, f"assets.{name}") for name, asset in (fields.assets or {}).items()}
    # In JSON, a name may be written otherwise.
    pictures = {told([name])[2:-2]: image for name, image in found.items()} | found
    state = split(told(fields.state), pictures)
    if not state:
        raise invalid("state", "must not be empty.")
    wanted = _scoring(fields.model, [Message("user", state)], asked, "state", pictures)
    used = {part for request in wanted.requests for each in request.messages or () for part in each.parts}
    for name, image in found.items():
        if image not in used:
            raise invalid(f"assets.{name}", "is in no text: write its name where the picture belongs.")
    return wanted


def about_input(fields: OpenAIDecisionRequest) -> Wanted:
    """The same in OpenAI's form."""
    pictures: dict[str, Part] = {}
    found = [_listed(each, f"questions[{at}]", pictures) for at, each in enumerate(fields.questions)]
    reader = ItemsReader(History().item, complete=True)
    reader.read(items_of(fields.input))
    if reader.skipped or reader.tools:
        raise unsupported("input", "only messages, calls of tools and their outputs can be decided about.")
    if not reader.messages:
        raise invalid("input", "must not be empty.")
    return _scoring(fields.model, reader.messages, found, "input", pictures)


def _scoring(
    model: str, messages: Sequence[Message], asked: list[Asked], field: str, pictures: Mapping[str, Part]
) -> Wanted:
    """`field`: the body's name for the messages. `pictures` by the words that stand for them in questions."""
    decisions = [decision for each in asked for decision in each.decisions]
    if len(decisions) > MOST_QUESTIONS:
        raise invalid(
            "questions",
            f"must be at most {MOST_QUESTIONS}; each label of a `multi_label` and each edge of a `box` is one.",
        )
    # Questions of text are computed together. What others begin with, up to their last picture, is part of the prompt.
    groups: dict[tuple[Part, ...], dict[Decision, Decision]] = {}
    for each in decisions:
        parts = split(each.question, pictures)
        if any(mark in label for label in each.labels for mark in pictures):
            raise invalid("questions", "have a picture as a label: put it into what the label means.")
        text = parts[-1].text if parts and isinstance(parts[-1], Text) else ""
        begun = parts[:-1] if text else parts
        groups.setdefault(begun, {})[each] = Decision(text, each.labels)
    requests = [
        GenerationRequest(
            model=model,
            messages=(
                Message("system", (Text(SYSTEM),)),
                *messages,
                *([Message("user", begun)] if begun else []),
            ),
            continue_final=bool(begun),
            decisions=tuple(group.values()),
            max_tokens=0,
            thinking=Thinking(enabled=False),
            overflow="error",
            names=called(messages=field),
        )
        for begun, group in groups.items()
    ]
    return Wanted(requests, asked, list(chain(*groups.values())))


def split(text: str, pictures: Mapping[str, Part]) -> tuple[Part, ...]:
    """A text as parts, with pictures in the places of the words that stand for them."""
    # Of two words that begin alike the longer one is looked for first.
    marks = "|".join(map(re.escape, sorted(pictures, key=len, reverse=True)))
    pieces = re.split(f"({marks})", text) if pictures else [text]
    return tuple(pictures.get(each) or Text(each) for each in pieces if each)


def told(value: Told) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def asked_of(asked: QuestionFields, name: str, *, pictured: bool = False) -> Asked:
    """Raises `ServerError` for a question without what its type needs."""
    at, said = f"questions.{name}", told(asked.instructions or "")
    if asked.threshold is not None and asked.type != "multi_label":
        raise unsupported(f"{at}.threshold", "it belongs to `multi_label`.")
    kind, criteria = asked.type, asked.criteria
    if isinstance(criteria, tuple) and kind in ("choice", "multi_label"):
        # Without an object, labels are texts.
        criteria = dict.fromkeys(each for each in criteria if isinstance(each, str))
        if len(criteria) < len(asked.criteria or ()) or "" in criteria:
            raise invalid(f"{at}.criteria", "must be different texts.")
    match kind, criteria:
        case "choice" | "multi_label", dict() if criteria:
            return Asked(kind, said, criteria, 0.5 if asked.threshold is None else asked.threshold)
        case "score", tuple(levels) if levels:
            return Asked("score", said, {str(number): each for number, each in enumerate(levels)})
        case "noul" | "bool", None | dict() if set(criteria or ()) <= {"true", "false"}:
            return _yes_or_no(said, criteria or {}, at)
        case "box", None if said.strip() and pictured:
            return Asked("box", said, dict.fromkeys(PLACES))
        case "box", _:
            raise invalid(f"{at}.type", BOXES)
        case _:
            raise invalid(f"{at}.criteria", CRITERIA)


def _yes_or_no(said: str, meant: Mapping[str, Any], at: str) -> Asked:
    if not said.strip() and not any(meant.values()):
        raise invalid(f"{at}.instructions", "is required.")
    return Asked("noul", said, {"yes": meant.get("true"), "no": meant.get("false")})


BOXES: Final = "`box` is a place in a picture of `assets`, and has `instructions` alone; the model must see."
CRITERIA: Final = (
    "must be an object of labels and what they mean, or a list of labels; of a `score` a list of levels; of a `noul` "
    "or `bool` an object with `true`, `false` or both."
)


def _image(asset: Asset, files: Mapping[str, bytes], at: str) -> Image:
    if asset.part is not None:
        if asset.part not in files:
            raise invalid(f"{at}.part", f"names no file of the form: {asset.part!r}.")
        return Image(Inline(files[asset.part]), field=at)
    if asset.data_base64 is None:
        raise invalid(f"{at}.data_base64", "is required.")
    return Image(source_of_base64(asset.data_base64, f"{at}.data_base64"), field=at)


def _listed(asked: ListedQuestion, at: str, pictures: dict[str, Part]) -> Asked:
    """Adds the pictures of the question by words that stand for them."""
    texts = []
    for part in parts_of(asked.instructions, f"{at}.instructions")[0]:
        texts.append(part.text if isinstance(part, Text) else uuid4().hex)
        if not isinstance(part, Text):
            pictures[texts[-1]] = part
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
    if asked.kind == "box":
        edges = [*sorted(chances[:2]), *sorted(chances[2:])]
        return {"type": "box", "box": dict(zip(EDGES, edges, strict=True)), "confidence": None}
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


# Endpoints


class Deciding(Struct, frozen=True):
    api: Api

    async def decisions(self, request: Request) -> Response:
        """Probabilities of the answers to questions about a state: OpenAI's form, or that of mlx-vlm's server"""
        fields = await self.api.handler.fields_of(request, "decisions", _either)
        if isinstance(fields, DecisionRequest):
            return await self._about_state(request, fields, {}, as_typesafe=False)
        return await self._scored(request, about_input(fields), listed_answer, fields.questions)

    async def systemone(self, request: Request) -> Response:
        """Probabilities of the answers to questions about a state: TypeSafe's form, as JSON or with files"""
        files: dict[str, bytes] = {}
        if is_form(request):
            form = await self.api.handler.form_of(request)
            files = {name: uploads[-1].data for name, uploads in form.files.items()}
            fields, unknown = CONTRACT.decode("".join(form.fields.get("request", [])).encode())
            self.api.handler.note_unknown("systemone", unknown)
        else:
            fields = await self.api.handler.fields_of(request, "systemone", CONTRACT.decode)
        return await self._about_state(request, fields, files, as_typesafe=True)

    async def _about_state(
        self, request: Request, fields: DecisionRequest, files: dict[str, bytes], *, as_typesafe: bool
    ) -> Response:
        if model := await self._decision_model(fields.model):
            task, run = task_of(fields), self.api.handler.task
            found, _ = await run(request, task, Decided, model=fields.model, operation="decisions")
            answers = decided_answers(fields, found, as_typesafe=as_typesafe)
            usage = usage_of(Usage(prompt_tokens=found.used_tokens))
            return json_reply(DecisionReply(model=model, answers=answers, usage=usage))
        wanted = about_state(fields, files)
        answer = typed_answer if as_typesafe else valued_answer
        return await self._scored(request, wanted, answer, wanted.asked, names=fields.questions)

    async def _decision_model(self, name: str) -> str | None:
        """The id of a decision model. One that is not here yet is taken for a language model."""
        try:
            info = await self.api.service.names.find(name, "decisions")
        except ServerError:
            return None
        return info.id if info.kind == "decisions" else None

    async def _scored(
        self,
        request: Request,
        wanted: Wanted,
        answer: Callable[[Any, Sequence[float]], dict[str, Any]],
        asked: Iterable[Any],
        names: Iterable[str] = (),
    ) -> Response:
        """The reply with what a language model gives for the labels of each question: `answer` makes the answer to one
        that was `asked`."""
        runs = await self.api.handler.events(request, wanted.requests, operation="decisions")
        scored = [event.logprobs for events in runs for event in events if isinstance(event, Scored)]
        used = [event.usage for events in runs for event in events if isinstance(event, Finished)]
        model = (await self.api.service.names.find(wanted.requests[0].model, "language")).id
        found = list(map(answer, asked, wanted.chances(scored)))
        answers = dict(zip(names, found, strict=True)) if names else found
        usage = usage_of(Usage(**summed(Usage, used)))
        return json_reply(DecisionReply(model=model, answers=answers, usage=usage))


def _either(body: bytes) -> tuple[DecisionRequest | OpenAIDecisionRequest, tuple[str, ...]]:
    """The body in the form that it has."""
    given = decode_json(body, dict[str, msgspec.Raw])
    return OPENAI.decode(body) if "input" in given else CONTRACT.decode(body)


def routes(api: Api) -> list[BaseRoute]:
    deciding = Deciding(api)
    asked, answered = DecisionRequest, DecisionReply
    return [
        *both("/systemone", deciding.systemone, "POST", body=asked, answer=answered),
        *both("/decisions", deciding.decisions, "POST", body=asked, answer=answered),
    ]
