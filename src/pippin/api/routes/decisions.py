"""`/v1/systemone` and `/v1/decisions`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.dialects.shared.fields import decode_json
from pippin.api.http.forms import is_form
from pippin.api.kinds import decisions as kind
from pippin.api.routing import Api, both, json_reply
from pippin.core.errors import ServerError
from pippin.core.events import Decided, Finished, Scored
from pippin.core.requests import GenerationRequest

Answers = Callable[[Sequence[Sequence[float]]], Any]
"""Makes the answers of a reply from the probabilities of each question's labels."""


@dataclass(frozen=True)
class Deciding:
    api: Api

    async def decisions(self, request: Request) -> Response:
        """Probabilities of the answers to questions about a state: OpenAI's form, or that of mlx-vlm's server"""
        fields, unknown = await self.api.handler.json_of(request, _either)
        self.api.handler.note_unknown("decisions", unknown)
        if isinstance(fields, kind.DecisionRequest):
            return await self._about_state(request, fields, {}, as_typesafe=False)
        wanted, asked = kind.about_input(fields)
        answered = partial(map, kind.listed_answer, fields.questions)
        return await self._scored(request, wanted, asked, lambda chances: list(answered(chances)))

    async def systemone(self, request: Request) -> Response:
        """Probabilities of the answers to questions about a state: TypeSafe's form, as JSON or with files"""
        files: dict[str, bytes] = {}
        if is_form(request):
            form = await self.api.handler.form_of(request)
            files = {name: uploads[-1].data for name, uploads in form.files.items()}
            fields, unknown = kind.CONTRACT.decode("".join(form.fields.get("request", [])).encode())
        else:
            fields, unknown = await self.api.handler.json_of(request, kind.CONTRACT.decode)
        self.api.handler.note_unknown("systemone", unknown)
        return await self._about_state(request, fields, files, as_typesafe=True)

    async def _about_state(
        self, request: Request, fields: kind.DecisionRequest, files: dict[str, bytes], *, as_typesafe: bool
    ) -> Response:
        if await self._decides_by_itself(fields.model):
            task = kind.task_of(fields)
            found = await self.api.handler.result(
                request, task, Decided, model=fields.model, operation="decisions", admitted=True
            )
            answers = kind.decided_answers(fields, found, as_typesafe=as_typesafe)
            model = (await self.api.service.find(fields.model, task.model_kind)).id
            usage = kind.DecisionUsage(input_tokens=found.used_tokens, total_tokens=found.used_tokens)
            return json_reply(kind.DecisionReply(model=model, answers=answers, usage=usage))
        wanted, asked = kind.about_state(fields, files)
        answered = partial(map, kind.typed_answer if as_typesafe else kind.valued_answer, asked)
        return await self._scored(
            request,
            wanted,
            asked,
            lambda chances: dict(zip(fields.questions, answered(chances), strict=True)),
        )

    async def _decides_by_itself(self, model: str) -> bool:
        """Whether the model is a decision model. One that is not here yet is taken for a language model."""
        try:
            return (await self.api.service.find(model, "decisions")).kind == "decisions"
        except ServerError:
            return False

    async def _scored(
        self, request: Request, wanted: GenerationRequest, asked: list[kind.Asked], answers: Answers
    ) -> Response:
        """The reply with what a language model gives for the labels of each question."""
        events = await self.api.handler.events(request, wanted, operation="decisions")
        [scored] = [event for event in events if isinstance(event, Scored)]
        finished = events[-1]
        assert isinstance(finished, Finished)
        logprobs = iter(scored.logprobs)
        found = answers([each.chances(logprobs) for each in asked])
        model = (await self.api.service.find(wanted.model, "language")).id
        usage = kind.DecisionUsage.of(finished.usage)
        return json_reply(kind.DecisionReply(model=model, answers=found, usage=usage))


def _either(body: bytes) -> tuple[kind.DecisionRequest | kind.OpenAIDecisionRequest, tuple[str, ...]]:
    """The body in the form that it has."""
    given = decode_json(body, dict[str, msgspec.Raw])
    return kind.OPENAI.decode(body) if "input" in given else kind.CONTRACT.decode(body)


def routes(api: Api) -> list[BaseRoute]:
    deciding = Deciding(api)
    asked, answered = kind.DecisionRequest, kind.DecisionReply
    return [
        *both("/systemone", deciding.systemone, "POST", body=asked, answer=answered),
        *both("/decisions", deciding.decisions, "POST", body=asked, answer=answered),
    ]
