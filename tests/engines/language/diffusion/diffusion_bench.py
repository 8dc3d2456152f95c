"""A tiny diffusion language model with its preparer and engine."""

from pathlib import Path
from typing import Any

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Image, Inline, Message, Part, Text
from pippin.core.events import Event, Finished, PartDelta
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate
from pippin.engines.language import open_engine, open_preparer
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.library.engine import LibraryEngine
from tests.engines.driving import no_progress, run


class DiffusionBench:
    def __init__(self, folder: Path, **options: Any) -> None:
        info = ModelInfo(id="tiny", kind="language", path=str(folder), architecture=folder.name)
        info = msgspec.structs.replace(info, context_window=4096)
        spec = WorkerSpec(info=info, options=msgspec.to_builtins(ModelOptions(**options)))
        self.preparer = open_preparer(spec)
        engine = open_engine(spec, self.preparer, no_progress)
        assert isinstance(engine, LibraryEngine)
        self.engine = engine

    def job(
        self,
        text: str,
        picture: bytes | None = None,
        *,
        id: str = "a",
        tokens: int = 32,
        sampling: dict[str, Any] | None = None,
        **request: Any,
    ) -> LanguageJob:
        """Of one message of the user; what nobody asks for is as the service has it."""
        shown: tuple[Part, ...] = () if picture is None else (Image(Inline(picture, "image/png")),)
        asked = GenerationRequest(
            model="tiny",
            messages=(Message("user", (*shown, Text(text))),),
            max_tokens=tokens,
            sampling=msgspec.structs.replace(self.preparer.info.sampling, **(sampling or {})),
            **request,
        )
        job = self.preparer.prepare(id, Generate(asked))
        assert isinstance(job, LanguageJob)
        return job

    def shown(self, tokens: list[int]) -> str:
        """The text of tokens, without those that are never sent."""
        special = self.preparer.tokenizer.pieces.special
        return self.preparer.tokenizer.decode(tuple(token for token in tokens if token not in special))

    def answer(self, text: str, picture: bytes | None = None, **request: Any) -> tuple[str, Finished]:
        events = run(self.engine, self.job(text, picture, **request))["a"]
        return text_of(events), ended(events)[0]


def text_of(events: list[Event], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, PartDelta) and event.choice == choice)


def ended(events: list[Event]) -> list[Finished]:
    return [event for event in events if isinstance(event, Finished)]
