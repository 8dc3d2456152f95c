"""The model as this server runs it, asked without a socket."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pippin.core.completion import Completion, collect
from pippin.core.errors import ServerError
from pippin.core.events import Event, Failed, Finished, Scored
from pippin.core.models import WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.language.job import Branch, LanguageJob
from pippin.engines.language.library.engine import LibraryEngine
from pippin.engines.language.loading.engine import open_engine
from pippin.engines.language.prompt.preparer import LanguagePreparer, open_preparer
from pippin.engines.language.step.engine import LanguageEngine

AT_ONCE: Final = 40
Progress = Callable[[int, int], None]


def ignored(done: int, total: int) -> None:
    """Progress that nobody is told."""


class Served(Struct, frozen=True):
    """A loaded model and its engine."""

    preparer: LanguagePreparer
    engine: LanguageEngine | LibraryEngine

    @classmethod
    def open(cls, spec: WorkerSpec) -> "Served":
        """Raises `ServerError("load_failed")`."""
        preparer = open_preparer(spec)
        return cls(preparer, open_engine(spec, preparer, lambda done, total, what: None))

    @property
    def chats(self) -> bool:
        """Whether the model takes conversations."""
        return self.preparer.info.capabilities.chat

    @property
    def scores(self) -> bool:
        """Whether the engine tells log probabilities."""
        return isinstance(self.engine, LanguageEngine)

    @property
    def branches(self) -> bool:
        """Whether the engine scores the branches of a prompt."""
        return isinstance(self.engine, LanguageEngine) and self.engine.batch.groups.layout.forks

    def ask(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """The greedy answers, computed together. Raises `ServerError` for a request that is refused."""
        jobs = [self._job(number, request) for number, request in enumerate(requests)]
        return list(map(collect, self._events(jobs, ignored).values()))

    def ask_all(self, requests: Sequence[GenerationRequest], progress: Progress) -> list[Completion | None]:
        """The greedy answers; None for a request that was refused. `progress` is told the requests done and those in
        all."""
        jobs: list[LanguageJob | None] = []
        for number, request in enumerate(requests):
            try:
                jobs.append(self._job(number, request))
            except ServerError:
                jobs.append(None)
        taken = [job for job in jobs if job is not None]
        found = self._events(taken, lambda done, _: progress(done + jobs.count(None), len(jobs)))
        return [None if job is None else collect(found[job.id]) for job in jobs]

    def branch_scores(
        self, prompt: tuple[int, ...], branches: tuple[Branch, ...]
    ) -> Sequence[tuple[float, ...]]:
        """The log probability of each label of each branch of a prompt, computed once. Raises `ServerError`."""
        asked = GenerationRequest(model="verify", prompt=prompt, echo=True, max_tokens=0)
        job = replace(self._job(0, asked), branches=branches)
        for event in self._events([job], ignored)[job.id]:
            match event:
                case Scored(logprobs):
                    return logprobs
                case Failed(error):
                    raise ServerError(error.kind, error.message)
        raise AssertionError("Branches end scored, or failed.")

    def _job(self, number: int, request: GenerationRequest) -> LanguageJob:
        greedy = Generate(replace(request, sampling=Sampling(temperature=0.0)))
        job = self.preparer.prepare(f"verify-{number}", greedy)
        assert not isinstance(job, tuple)
        return job

    def _events(self, jobs: Sequence[LanguageJob], progress: Progress) -> dict[str, list[Event]]:
        """The events of jobs, `AT_ONCE` of which are under way."""
        events: dict[str, list[Event]] = {job.id: [] for job in jobs}
        waiting, done = deque(jobs), 0
        while done < len(jobs):
            while waiting and len(jobs) - len(waiting) - done < AT_ONCE:
                self.engine.submit(waiting.popleft())
            for name, event in self.engine.step():
                events[name].append(event)
                if isinstance(event, Finished | Failed):
                    done += 1
                    progress(done, len(jobs))
        return events
