"""One rank of a group that runs jobs on models: `python -m tests.engines.language.ranks.rank_run PLAN RANK`.

Rank 0 writes what each request said, as JSON, where the plan says. Without ranks in the plan, one process does that.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.config.worker_environment import rank_environment
from pippin.core.events import Accepted, Failed, Finished, Usage
from pippin.core.models import ModelInfo, RankSpec, WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.engines.base import Engine
from pippin.engines.cpu.blas import accelerate_blas
from pippin.worker.ranks import GroupLink, meet

Said = dict[str, Any]
"""Of each request: its tokens with their logprobs and the alternatives'."""

LENGTHS = {"short": 5, "long": 90, "middle": 23, "drawn": 12}
"""Tokens of each request's prompt; `drawn` is sampled with a seed, the others are greedy."""


class Plan(msgspec.Struct, frozen=True):
    folders: list[str]
    ranks: list[RankSpec]
    output: str


def jobs(offset: int = 0) -> list[Any]:
    from pippin.engines.language.job import LanguageJob

    found = []
    for name, length in LENGTHS.items():
        sampling = Sampling(temperature=1.0, top_p=0.9) if name == "drawn" else Sampling(temperature=0)
        prompt = tuple((7 * place * place + 3 * length + offset) % 250 for place in range(length))
        found.append(
            LanguageJob(
                id=name,
                request=GenerationRequest(model="tiny", sampling=sampling, logprobs=4),
                accepted=Accepted(length),
                prompt=prompt,
                max_tokens=6,
                seed=11,
                created=time.monotonic(),
            )
        )
    return found


def answers(engine: Engine, inner: Any) -> Said:
    """What the engine says to all jobs at once, and again when their prompts are known, with one that is cancelled.

    `inner` is the `LanguageEngine` in it: tokens are noted as it accepts them, whatever text they make.
    """
    said: Said = {}
    tag = ""
    accept = inner.lifecycle.accept

    def noting(running: Any, sampled: Any) -> None:
        tops = [[top.id, top.logprob] for top in sampled.top]
        name = running.sequence.request.job.id + tag
        said.setdefault(name, []).append([sampled.token, sampled.logprob, tops])
        accept(running, sampled)

    inner.lifecycle.accept = noting
    for again in (False, True):
        tag = " again" if again else ""
        for job in jobs():
            engine.submit(job)
        if again:
            [extra] = [job for job in jobs(offset=5) if job.id == "long"]
            engine.submit(replace(extra, id="cancelled"))
        steps = 0
        while engine.busy:
            steps += 1
            if again and steps == 2:
                engine.cancel("cancelled")
            for name, usage in ends(engine):
                said[f"{name}{tag} cached"] = usage.cached_tokens
    said.pop("cancelled again", None)
    tag = " crowded"
    said["preempted"] = crowd(engine, inner)
    return said


def ends(engine: Engine) -> list[tuple[str, Usage]]:
    """Which requests ended in one step."""
    found = []
    for name, event in engine.step():
        assert not isinstance(event, Failed), event
        if isinstance(event, Finished):
            found.append((name, event.usage))
    return found


def crowd(engine: Engine, inner: Any) -> bool:
    """Take memory away while sequences run; whether some were preempted."""
    for job in jobs(offset=9):
        engine.submit(replace(job, max_tokens=40))
    while len(inner.scheduler.running) < len(LENGTHS):
        ends(engine)
    limits = inner.scheduler.limits
    # Room for two.
    room = 2.2 * limits.sequence_bytes(256) * inner.share(1 << 30).sequences / limits.memory
    engine.reconfigure({"memory_bytes": inner.counters.weight_bytes + int(1.25 * room)})
    while engine.busy:
        ends(engine)
    return bool(inner.lifecycle.preemptions)


def lost(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    options = ModelOptions(prefill_step_size=32, memory_bytes=1 << 30, cpu_kernels="off")
    accelerate_blas(options, 1)
    if not plan.ranks:
        Path(plan.output).write_text(json.dumps({each: alone(Path(each), options) for each in plan.folders}))
        return
    rank = plan.ranks[int(sys.argv[2])]
    link = meet(rank, lost)
    results = {}
    with rank_environment(rank):
        for folder in map(Path, plan.folders):
            results[folder.name] = run(folder, options, rank, link)
    if rank.rank == 0:
        Path(plan.output).write_text(json.dumps(results))


def alone(folder: Path, options: ModelOptions) -> Said:
    from pippin.engines import language

    info = ModelInfo(id="tiny", kind="language", path=str(folder), architecture=folder.name)
    spec = WorkerSpec(info=info, options=msgspec.to_builtins(options), threads=1)
    engine = language.open_engine(spec, language.open_preparer(spec), lambda *_: None)
    said = answers(engine, engine)
    engine.close()
    return said


def run(folder: Path, options: ModelOptions, rank: RankSpec, link: GroupLink) -> Said:
    from pippin.engines import language
    from pippin.engines.language.ranks.leader import LeadingEngine

    info = ModelInfo(id="tiny", kind="language", path=str(folder), architecture=folder.name)
    spec = WorkerSpec(info=info, options=msgspec.to_builtins(options), threads=1, rank=rank)
    found = language.open_rank(spec, language.open_preparer(spec), lambda *_: None, link)
    if isinstance(found, LeadingEngine):
        said = answers(found, found.engine)
        found.close()
        return said
    found.run()
    return {}


if __name__ == "__main__":
    main()
