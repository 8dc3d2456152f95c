"""Requests to jobs: what is done before the engine sees a request, beside the step loop."""

import json
import secrets
import time
from pathlib import Path

import jinja2.sandbox
import msgspec

from pippin.config.model_options import ModelOptions
from pippin.core.conversation import Text
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Counted, Detokenized, Event, Rendered, Tokenized
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Detokenize, Generate, RenderTemplate, Task, Tokenize
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.tokenizer import Tokenizer


class LanguagePreparer:
    """Safe for use from several threads at once."""

    def __init__(self, spec: WorkerSpec, tokenizer: Tokenizer, template: str | None) -> None:
        self.tokenizer = tokenizer
        self.options = msgspec.convert(spec.options, ModelOptions)
        self.info: ModelInfo = spec.info
        self._template = template

    def prepare(self, id: str, task: Task) -> LanguageJob | tuple[Event, ...]:
        match task:
            case Generate(request):
                return self._job(id, request)
            case CountTokens(request):
                return (Counted(len(self._encode(request)[1])),)
            case RenderTemplate(request):
                text, tokens = self._encode(request)
                return (Rendered(text, tuple(tokens)),)
            case Tokenize(text, add_special_tokens, with_pieces):
                tokens = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
                pieces = tuple(map(self.tokenizer.raw, tokens)) if with_pieces else ()
                return (Tokenized(tuple(tokens), pieces),)
            case Detokenize(tokens):
                return (Detokenized(self.tokenizer.decode(tokens)),)
            case _:
                raise ServerError("unsupported", f"The model {self.info.id!r} is a language model.", "model")

    def _encode(self, request: GenerationRequest) -> tuple[str, list[int]]:
        if request.prompt is not None:
            if isinstance(request.prompt, str):
                return request.prompt, self.tokenizer.encode(request.prompt, add_special_tokens=True)
            return "", list(request.prompt)
        messages = [
            {"role": message.role, "content": "".join(p.text for p in message.parts if isinstance(p, Text))}
            for message in request.messages or ()
        ]
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        text = environment.from_string(self._template or "").render(
            messages=messages, add_generation_prompt=True
        )
        return text, self.tokenizer.encode(text)

    def _job(self, id: str, request: GenerationRequest) -> LanguageJob:
        text, tokens = self._encode(request)
        room = (self.info.context_window or 1 << 30) - len(tokens)
        return LanguageJob(
            id=id,
            request=request,
            accepted=Accepted(len(tokens)),
            prompt=tuple(tokens),
            prompt_text=text if request.echo else "",
            max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
            eos=frozenset() if request.ignore_eos else self.tokenizer.eos | set(request.stop_token_ids),
            stops=request.stop,
            seed=request.sampling.seed if request.sampling.seed is not None else secrets.randbits(63),
            created=time.monotonic(),
        )


def open_preparer(spec: WorkerSpec) -> LanguagePreparer:
    folder = Path(spec.info.path or "")
    tokenizer = Tokenizer.load(folder)
    template = None
    if (folder / "chat_template.jinja").exists():
        template = (folder / "chat_template.jinja").read_text()
    elif (folder / "tokenizer_config.json").exists():
        template = json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template")
    return LanguagePreparer(spec, tokenizer, template)
