"""The model as this server runs it, asked without a socket."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from pippin.core.completion import Completion, collect
from pippin.core.errors import ServerError
from pippin.core.events import Event, Token
from pippin.core.models import WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.language.library.engine import LibraryEngine
from pippin.engines.language.loading.engine import open_engine
from pippin.engines.language.prompt.preparer import LanguagePreparer, open_preparer
from pippin.engines.language.step.engine import LanguageEngine

AT_ONCE = 8


@dataclass(frozen=True)
class Served:
    """A loaded model and its engine."""

    preparer: LanguagePreparer
    engine: LanguageEngine | LibraryEngine
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @classmethod
    def open(cls, spec: WorkerSpec) -> "Served":
        """Raises `ServerError("load_failed")`."""
        preparer = open_preparer(spec)
        return cls(preparer, open_engine(spec, preparer, lambda done, total, what: None))

    @property
    def chats(self) -> bool:
        """Whether the model takes conversations."""
        return self.preparer.info.capabilities.chat

    def ask(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """The greedy answers, computed together. Raises `ServerError` for a request that is refused."""
        events: dict[str, list[Event]] = {}
        for request in requests:
            name = f"verify-{next(self.numbers)}"
            job = self.preparer.prepare(name, Generate(replace(request, sampling=Sampling(temperature=0.0))))
            assert not isinstance(job, tuple)
            events[name] = []
            self.engine.submit(job)
        while self.engine.busy:
            for name, event in self.engine.step():
                events[name].append(event)
        return [collect(found) for found in events.values()]

    def ask_all(
        self, requests: Sequence[GenerationRequest], progress: Callable[[int, int], None]
    ) -> list[Completion | None]:
        """The greedy answers, some at a time; None for a request that was refused. `progress` is told the requests
        done and those in all."""
        found: list[Completion | None] = []
        for start in range(0, len(requests), AT_ONCE):
            some = requests[start : start + AT_ONCE]
            try:
                found += self.ask(some)
            except ServerError:
                found += [None] * len(some)
            progress(len(found), len(requests))
        return found


def tokens_of(completion: Completion) -> tuple[Token, ...]:
    """The tokens of an answer with their log probabilities."""
    return tuple(token for part in completion.choices[0].parts for token in part.tokens)
