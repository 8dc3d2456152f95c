"""Runs a random schedule on an engine, and lets the model alone judge every answer."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import msgspec
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, Failed, PromptEcho
from pippin.core.models import ModelInfo
from pippin.core.requests import GenerationRequest
from pippin.engines.language.constraints.grammar import GrammarCompiler
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.kv_cache import groups as slot_group
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.kv_cache.layout import snapshot_arrays
from pippin.engines.language.loading import drafting
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.engine import build_engine
from pippin.engines.language.model.weights import load_weights
from pippin.engines.language.prefix_cache.cache import PrefixCache
from pippin.engines.language.step.engine import LanguageEngine
from pippin.engines.language.step.sequences import Running, Sequence
from pippin.engines.language.step.speculation.proposers import Proposal
from pippin.engines.language.text.tokenizer import Tokenizer
from tests.engines.language.bench import PLAN, Eager, Tried, speculation_of, tried_once
from tests.engines.language.reference import Answer, Quantised, Reference
from tests.engines.language.schedules import MANNERS, Ask, World

BLOCK = 8  # tokens of the prefix cache's blocks
MOST_STEPS = 6000
MOST_TOKENS = 240  # of a prompt
LOOSE = 0.3  # what 8-bit keys and values may change logits by
FLIPPED = {8: 0.02, 4: 0.2}  # what rounding may, where it moves a key or value to the next step of its scale


@contextmanager
def small_steps(world: World) -> Iterator[None]:
    """What else happens after hundreds of tokens happens after a few; proposals are made in every step."""
    with ExitStack() as stack:
        stack.enter_context(
            patch.multiple(sizes, CAPACITY_STEP=16, GROWTH_CHARGED=4, LENGTH_CLASSES=(40, 90))
        )
        stack.enter_context(patch.multiple(slot_group, SPARSE_STEPS=1))
        if world.interval == 1:
            stack.enter_context(patch.object(drafting, "Pace", Eager))
        yield


@dataclass
class Subject:
    """A model under test: its folder, that of its draft model, and folders of adapters."""

    folder: Path
    draft: Path | None = None
    head: Path | None = None  # that drafts from its states; None: the one in its own checkpoint
    adapters: dict[str, str] = field(default_factory=dict)
    references: dict[str | None, Reference] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)
    tried: Tried = field(default_factory=dict)
    kernels: bool = False  # the kernels for CPUs compute it, and MLX its reference

    def __post_init__(self) -> None:
        self.tokenizer = Tokenizer.load(self.folder)
        self.grammars = GrammarCompiler(self.tokenizer)
        self.model = self.load()
        if self.kernels:
            self.references[None] = Reference(self.model, self.tokenizer)
            self.model = self.load(kernel_threads=2)

    def load(self, kernel_threads: int | None = None) -> Any:
        info = ModelInfo(id="subject", kind="language", path=str(self.folder))
        model, _ = load_weights(
            info,
            msgspec.structs.replace(PLAN, kernels=kernel_threads is not None),
            lambda *_: None,
            kernel_threads=kernel_threads,
        )
        return model

    def drafter(self, world: World) -> str | None:
        """The folder of what drafts."""
        if world.proposals == "draft":
            return str(self.draft)
        return str(self.head) if world.proposals == "head" and self.head is not None else None

    def open(self, world: World, disk: Path) -> LanguageEngine:
        options = ModelOptions(
            max_num_seqs=6,
            cache_block_tokens=BLOCK,
            cache_dir=str(disk) if world.disk else None,
            prefix_cache=world.prefixes,
            stream_interval=world.interval,
            num_draft_tokens=4,
            # A random head is never right: what is looked up is, now and then.
            prompt_lookup=world.proposals in ("prompt_lookup", "known", "head"),
            draft_model_path=self.drafter(world),
            mtp=world.proposals == "head" and self.head is None,
            adapters=self.adapters if world.adapted else {},
            kv_bits=world.kv_bits,  # type: ignore[arg-type]
            kv_group_size=32,
        )
        model = self.load(2 if self.kernels else None) if world.adapted else self.model
        plan = msgspec.structs.replace(
            PLAN,
            prefill_chunk=world.chunk,
            overlaps=world.overlaps,
            writes_in_place=not world.overlaps,
            launch_bytes=0 if world.pieces else None,
            kernels=self.kernels,
        )
        threads = 2 if self.kernels else None
        with tried_once({} if world.adapted else self.tried):
            engine = build_engine(Asked(model, self.tokenizer, options, plan, self.folder, threads))
        if world.proposals == "known":
            speculation_of(engine).proposer = Knowing(model)
        limits = engine.scheduler.limits
        if world.room is not None:
            limits.memory = world.room * limits.sequence_bytes(BLOCK)
        if world.tree is not None:
            engine.prefixes.resize(world.tree * limits.sequence_bytes(BLOCK))
        return engine

    def reference(self, world: World, adapter: str | None) -> Reference:
        found = self.references.get(adapter) or Reference(self.model, self.tokenizer)
        if world.kv_bits is None:
            return found
        quantised = Quantised(world.kv_bits, 32)
        if not world.exact:
            return replace(found, tolerance=LOOSE, some_quantised=quantised)
        return replace(found, quantised=quantised, tolerance=FLIPPED[world.kv_bits])

    def job(self, name: str, ask: Ask, prompt: tuple[int, ...]) -> LanguageJob:
        manner = MANNERS[ask.manner]
        grammar = None if manner.wanted is None else self.grammars.compile(manner.wanted)
        ends = () if manner.thinking is None else tuple(self.tokenizer.encode(manner.thinking.end))
        return LanguageJob(
            id=name,
            request=GenerationRequest(
                model="subject",
                sampling=manner.sampling,
                n=ask.choices,
                logprobs=manner.logprobs,
                prompt_logprobs=manner.prompt_logprobs,
                min_tokens=manner.min_tokens,
                stop=manner.stops,
                adapter=ask.adapter,
                priority=ask.priority,
            ),
            accepted=Accepted(len(prompt)),
            prompt=prompt,
            max_tokens=ask.tokens,
            eos=manner.eos,
            pins=(min(ask.count, len(prompt)),) if ask.pinned else (),
            thinking_open=manner.thinking is not None,
            thinking_budget=manner.budget,
            thinking_end=ends,
            reasoning_format=manner.thinking,
            grammar=grammar,
            stops=manner.stops,
            seed=ask.seed,
            created=time.monotonic(),
            key=f"{ask.adapter} {ask.salt}".encode(),
        )


class Knowing:
    """Proposes what the model alone says, greedily, and now and then something else."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._said: dict[Sequence, list[int]] = {}  # its text and how that goes on

    is_free = True

    def is_ready(self, sequence: Sequence) -> bool:
        return True

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[Proposal]:
        return [Proposal(self._known(sequence, most)) for sequence, most in wanted]

    def _known(self, sequence: Sequence, most: int) -> list[int]:
        tokens = sequence.tokens
        if sequence not in self._said:
            assert isinstance(sequence.stage, Running)
            self._said[sequence] = tokens + self._answer(tokens, sequence.stage.growth)
        proposed = self._said[sequence][len(tokens) : len(tokens) + most]
        if len(tokens) % 3 == 0 and proposed:
            proposed[-1] = (proposed[-1] + 1) % 256
        return proposed

    def _answer(self, prompt: list[int], count: int) -> list[int]:
        cache, tokens = make_prompt_cache(self._model), mx.array([prompt])
        said: list[int] = []
        for _ in range(count):
            tokens = mx.argmax(self._model(tokens, cache=cache)[:, -1:], axis=-1)
            said += np.array(tokens)[0].tolist()
        return said

    def forget(self, sequence: Sequence) -> None:
        self._said.pop(sequence, None)

    def sequence_bytes(self, capacity: int) -> int:
        return 0


class Run:
    """One schedule on one engine after the other: a restart closes the first and opens the next."""

    def __init__(self, subject: Subject, world: World, disk: Path) -> None:
        self.subject, self.world, self.disk = subject, world, disk
        self.answers: dict[tuple[str, int], Answer] = defaultdict(Answer)
        self.echoes: dict[str, PromptEcho] = {}
        self.jobs: dict[str, LanguageJob] = {}
        self.cancels: dict[str, int] = {}
        self.left: set[str] = set()  # cancelled, or lost with an engine
        self.step, self.forced = 0, 4
        self.engine = self._open()

    def _open(self) -> LanguageEngine:
        engine = self.subject.open(self.world, self.disk)
        accept = engine.lifecycle.accept

        def noting(running: Any, sampled: Any) -> None:
            sequence = running.sequence
            self.answers[sequence.request.job.id, sequence.choice].chosen.append(sampled)
            accept(running, sampled)

        engine.lifecycle.accept = noting  # type: ignore[method-assign]
        return engine

    def arrive(self, name: str, ask: Ask) -> None:
        match ask.before:
            case "clear" | "wipe":
                self.engine.clear_cache(prefixes_only=True, disk=ask.before == "wipe")
            case "restart" if self.world.disk:
                self._close()
                self.engine = self._open()
        job = self.subject.job(name, ask, self._prompt(ask))
        try:
            self.engine.submit(job)
        except ServerError as error:
            if self.world.room is None or error.report.kind != "context_length_exceeded":
                raise
            return
        self.jobs[name] = job
        if ask.cancel is not None:
            self.cancels[name] = self.step + ask.cancel

    def _prompt(self, ask: Ask) -> tuple[int, ...]:
        answered = [name for name in self.jobs if self.answers[name, 0].finished is not None]
        if not ask.follows or not answered:
            return ask.prompt
        before = self.jobs[answered[-1]].prompt + tuple(self.answers[answered[-1], 0].tokens)
        return (before + ask.tail)[:MOST_TOKENS] if before + ask.tail else ask.prompt

    def advance(self) -> None:
        engine, world = self.engine, self.world
        for name in [name for name, at in self.cancels.items() if at <= self.step]:
            engine.cancel(name)
            self.left.add(name)
            del self.cancels[name]
        due = world.preempt_every and self.step % world.preempt_every == world.preempt_every - 1
        if due and self.forced and (rows := engine.batch.running):
            self.forced -= 1
            engine.lifecycle.suspend(rows[self.step % len(rows)])
        for owner, event in engine.step():
            self._take(owner, event)
        if isinstance(engine.prefixes, PrefixCache):
            tree = engine.prefixes.tree
            assert tree.bytes <= tree.limit
        self.step += 1
        assert self.step < MOST_STEPS, "it comes to no end"

    def _take(self, owner: str, event: Event) -> None:
        assert owner not in self.left, "an event after a cancel"
        assert not isinstance(event, Failed), event
        if isinstance(event, PromptEcho):
            self.echoes[owner] = event
        elif (choice := getattr(event, "choice", None)) is not None:
            self.answers[owner, choice].add(event)

    def _close(self) -> None:
        engine = self.engine
        stats = engine.stats()
        cache = stats.cache
        self.subject.tally.update(
            engines=1,
            preempted=stats.preemptions,
            hits=cache.hits,
            evicted=cache.evictions,
            disk_hits=cache.disk_hits,
            proposed=stats.draft_tokens,
            accepted=stats.accepted_tokens,
        )
        self.left |= self.jobs.keys() & {request.job.id for request in engine.lifecycle.live}
        engine.close()

    def check_nothing_is_left(self) -> None:
        engine = self.engine
        assert not engine.batch.running
        assert engine.batch.groups.bytes == 0
        scheduler = engine.scheduler
        assert [] == scheduler.waiting == scheduler.prefilling == scheduler.running
        if not isinstance(engine.prefixes, PrefixCache):
            return
        tree = engine.prefixes.tree
        least = tree.limit // (PLAN.most_cached_arrays or tree.limit + 1)
        arrays = [
            each
            for node in tree.nodes
            for each in (*(node.block or ()), *snapshot_arrays(node.snapshot or ()))
        ]
        held = sum(max(each.nbytes, least) for each in arrays)
        assert held == tree.bytes <= tree.limit, f"{held} held, {tree.bytes} counted, {tree.limit} allowed"

    def judge(self) -> None:
        for name, job in self.jobs.items():
            reference = self.subject.reference(self.world, job.request.adapter)
            for choice in range(job.request.n):
                answer = self.answers[name, choice]
                self.subject.tally.update(answers=1, tokens=len(answer.chosen))
                assert answer.finished is not None or name in self.left
                reference.judge(job, choice, answer)
                if name not in self.left and len(answer.chosen) < job.max_tokens and self.world.room is None:
                    assert answer.finished is not None
                    assert self._may_end_early(job), "it ended early"
            if name in self.echoes:
                self._judge_echo(reference, job, self.echoes[name])

    def _may_end_early(self, job: LanguageJob) -> bool:
        return bool(job.eos or job.stops or job.grammar is not None)

    def _judge_echo(self, reference: Reference, job: LanguageJob, echo: PromptEcho) -> None:
        assert [token.id for token in echo.tokens] == list(job.prompt)
        if len(job.prompt) < 2:
            return
        logits = reference.model(mx.array([job.prompt[:-1]]), cache=make_prompt_cache(reference.model))[0]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(logprobs, mx.array(job.prompt[1:])[:, None], axis=-1)[:, 0]
        expected: list[float] = np.array(chosen).tolist()
        for token, logprob in zip(echo.tokens[1:], expected, strict=True):
            assert abs((token.logprob or 0) - logprob) < reference.tolerance


def run_schedule(subject: Subject, plan: list[Ask], world: World, disk: Path) -> None:
    with small_steps(world):
        run = Run(subject, world, disk)
        due: int | None = 0
        for index, ask in enumerate(plan):
            while run.engine.busy and (due is None or run.step < due):
                run.advance()
            run.arrive(f"r{index}", ask)
            due = None if ask.gap is None else run.step + ask.gap
        while run.engine.busy:
            run.advance()
        run.check_nothing_is_left()
        run._close()
    run.judge()
    subject.tally["schedules"] += 1
