"""`/v1/systemone` and `/v1/decisions`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Deciding:
    api: Api

    async def decisions(self, request: Request) -> Response:
        """Probabilities of the answers to questions about a state: OpenAI's form, or that of mlx-vlm's server"""
        fields = await self.api.handler.fields_of(request, "decisions", _either)
        if isinstance(fields, kind.DecisionRequest):
            return await self._about_state(request, fields, {}, as_typesafe=False)
        return await self._scored(request, kind.about_input(fields), kind.listed_answer, fields.questions)

    async def systemone(self, request: Request) -> Response:
        """Probabilities of the answers to questions about a state: TypeSafe's form, as JSON or with files"""
        files: dict[str, bytes] = {}
        if is_form(request):
            form = await self.api.handler.form_of(request)
            files = {name: uploads[-1].data for name, uploads in form.files.items()}
            fields, unknown = kind.CONTRACT.decode("".join(form.fields.get("request", [])).encode())
            self.api.handler.note_unknown("systemone", unknown)
        else:
            fields = await self.api.handler.fields_of(request, "systemone", kind.CONTRACT.decode)
        return await self._about_state(request, fields, files, as_typesafe=True)

    async def _about_state(
        self, request: Request, fields: kind.DecisionRequest, files: dict[str, bytes], *, as_typesafe: bool
    ) -> Response:
        if model := await self._decision_model(fields.model):
            task, run = kind.task_of(fields), self.api.handler.result
            found = await run(request, task, Decided, model=fields.model, operation="decisions")
            answers = kind.decided_answers(fields, found, as_typesafe=as_typesafe)
            usage = kind.DecisionUsage(input_tokens=found.used_tokens, total_tokens=found.used_tokens)
            return json_reply(kind.DecisionReply(model=model, answers=answers, usage=usage))
        wanted = kind.about_state(fields, files)
        answer = kind.typed_answer if as_typesafe else kind.valued_answer
        return await self._scored(request, wanted, answer, wanted.asked, names=fields.questions)

    async def _decision_model(self, name: str) -> str | None:
        """The id of a decision model. One that is not here yet is taken for a language model."""
        try:
            info = await self.api.service.find(name, "decisions")
        except ServerError:
            return None
        return info.id if info.kind == "decisions" else None

    async def _scored(
        self,
        request: Request,
        wanted: kind.Wanted,
        answer: Callable[[Any, Sequence[float]], dict[str, Any]],
        asked: Iterable[Any],
        names: Iterable[str] = (),
    ) -> Response:
        """The reply with what a language model gives for the labels of each question: `answer` makes the answer to one
        that was `asked`."""
        runs = await self.api.handler.events(request, wanted.requests, operation="decisions")
        scored = [event.logprobs for events in runs for event in events if isinstance(event, Scored)]
        ended = [event.usage for events in runs for event in events if isinstance(event, Finished)]
        model = (await self.api.service.find(wanted.requests[0].model, "language")).id
        found = list(map(answer, asked, wanted.chances(scored)))
        answers = dict(zip(names, found, strict=True)) if names else found
        usage = kind.DecisionUsage.of(ended)
        return json_reply(kind.DecisionReply(model=model, answers=answers, usage=usage))


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
