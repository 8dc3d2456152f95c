"""Plays the scripted answers, one token of every request in each step."""

from typing import Any

from pippin.core.events import Finished, PartDelta, PartEnded, PartStarted, Usage
from pippin.core.models import EngineStats, WorkerSpec
from pippin.engines.base import Emission, LoadProgress
from pippin.engines.scripted.preparer import ScriptedJob, ScriptedPreparer


class ScriptedEngine:
    def __init__(self) -> None:
        self._rows: dict[str, tuple[ScriptedJob, int]] = {}

    def submit(self, job: ScriptedJob) -> None:
        self._rows[job.id] = (job, 0)

    def cancel(self, id: str) -> None:
        self._rows.pop(id, None)

    @property
    def busy(self) -> bool:
        return bool(self._rows)

    def step(self) -> list[Emission]:
        out: list[Emission] = []
        for id, (job, position) in list(self._rows.items()):
            if position == 0:
                out.extend((id, PartStarted(c, 0, "text")) for c in range(job.request.n))
            if position < min(len(job.pieces), job.request.max_tokens or len(job.pieces)):
                piece = job.pieces[position]
                out.extend((id, PartDelta(c, 0, piece, (), position + 1)) for c in range(job.request.n))
                self._rows[id] = (job, position + 1)
                continue
            del self._rows[id]
            usage = Usage(prompt_tokens=job.accepted.prompt_tokens, completion_tokens=position)
            reason = "stop" if position == len(job.pieces) else "length"
            for c in range(job.request.n):
                out += [(id, PartEnded(c, 0)), (id, Finished(c, reason, usage=usage))]
        return out

    def close(self) -> None:
        self._rows.clear()

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self._rows))

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        pass

    def reconfigure(self, options: dict[str, Any]) -> None:
        pass


def open_engine(spec: WorkerSpec, preparer: ScriptedPreparer, progress: LoadProgress) -> ScriptedEngine:
    return ScriptedEngine()
