"""Tokens a second with and without proposals, in turns, at several numbers of sequences; and whether answers are equal.

    python -m benchmarks.speculation --model FOLDER [--sequences 1 2 4 8] [--draft FOLDER [--lookup] [--wrong]]
    python -m benchmarks.speculation --model FOLDER --parts [--draft FOLDER | --mtp]

Engines of the same model in one process take turns: one plain, one with `prompt_lookup` (or a draft model), one without
options. Work: `edit` has the model write a piece of code again with a name changed; `predicted` is `edit` with the new
code given as OpenAI's `prediction`, to the engine without options; `prose` has it tell a story, where there is little
to look up. Shown are tokens a second of all sequences (medians), the median over the rounds of each round's
ratio by the clock and by CPU time, the share of proposals accepted, tokens that a step gave a sequence, and how many
answers were the same token by token. With `--wrong` all drafts of a head are wrong: what a useless one costs.

`--parts` shows instead where the time of a step goes that checks 0, 1, 2 or 3 tokens of a head for one sequence, each
time as many as that: milliseconds of CPU time of one thread, and of all. With `--mtp` the head is that of the model's
own checkpoint.
"""

import argparse
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from benchmarks.step_parts import counted
from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Message, Text
from pippin.core.events import Finished
from pippin.core.models import EngineStats, ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.cpu.blas import accelerate_blas

if TYPE_CHECKING:
    from pippin.engines.language.step.sequences import Sequence

Work = Literal["edit", "predicted", "prose"]

CODE = """class Account{number}:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance

    def transfer(self, other, amount):
        self.withdraw(amount)
        other.deposit(amount)
"""
EDIT = "Rename `amount` to `value` in this code, and write the whole code again:\n\n```python\n{code}```"
PROSE = "Write a long story about the mountain number {number}, its people and their winters."


def words_of(work: Work, number: int) -> str:
    """What the user asks for."""
    if work == "prose":
        return PROSE.format(number=number)
    return EDIT.format(code=CODE.replace("{number}", str(number)))


def request_of(work: Work, number: int, tokens: int) -> GenerationRequest:
    code = CODE.replace("{number}", str(number))
    return GenerationRequest(
        model="bench",
        messages=(Message("user", (Text(words_of(work, number)),)),),
        sampling=Sampling(temperature=0.0),
        max_tokens=tokens,
        ignore_eos=True,
        prediction=f"```python\n{code.replace('amount', 'value')}```" if work == "predicted" else None,
    )


class Speed(NamedTuple):
    """Tokens of all sequences, by the clock and by the time of the process on all cores: that tells of a busy machine
    too what the work is."""

    second: float
    cpu_second: float


class Subject:
    """An engine, and what its rounds gave."""

    def __init__(self, folder: Path, kernels: bool, *, threads: int | None = None, **options: Any) -> None:
        from pippin.engines.language import open_engine, open_preparer  # these import mlx

        chosen = {"prefix_cache": False, "cpu_kernels": "auto" if kernels else "off", **options}
        settings = ModelOptions(**chosen)
        info = ModelInfo(id="bench", kind="language", path=str(folder))
        spec = WorkerSpec(info=info, options=msgspec.to_builtins(settings), threads=threads)
        self.preparer = open_preparer(spec)
        self.engine = open_engine(spec, self.preparer, lambda *_: None)
        self.proposed = self.accepted = self.steps = 0
        self.given = 0.0  # tokens a sequence

    @property
    def speculation(self) -> Any:
        decoding: Any = self.engine.decoding
        return decoding.speculation

    def draft_wrongly(self) -> None:
        """Let its head draft the tokens beside those that it means, at the same cost."""
        [heads] = self.speculation.followers
        propose = heads.propose
        object.__setattr__(
            heads,
            "propose",
            lambda wanted: [
                draft._replace(tokens=[token ^ 1 for token in draft.tokens]) for draft in propose(wanted)
            ],
        )

    def texts(self, work: Work, count: int, tokens: int) -> list[tuple[list[int], list[int]]]:
        """Prompts with the answers to them."""
        for number in range(count):
            self._submit(work, number, tokens)
        sequences = [request.sequences[0] for request in self.engine.lifecycle.live]
        while self.engine.busy:
            self.engine.step()
        lengths = [len(each.request.job.prompt) for each in sequences]
        return [
            (each.tokens[:length], each.tokens[length:])
            for each, length in zip(sequences, lengths, strict=True)
        ]

    def _submit(self, work: Work, number: int, tokens: int) -> None:
        name = f"{time.monotonic_ns()}-{number}"
        prepared = self.preparer.prepare(name, Generate(request_of(work, number, tokens)))
        assert not isinstance(prepared, tuple)
        self.engine.submit(prepared)

    def begin_one(self, work: Work, number: int, tokens: int) -> "Sequence":
        """The sequence of one request, once it decodes."""
        self._submit(work, number, tokens)
        [request] = self.engine.lifecycle.live
        [sequence] = request.sequences
        while not self.engine.batch.running:
            self.engine.step()
        return sequence

    def begin(self, work: Work, sequences: int, tokens: int) -> dict[str, "Sequence"]:
        """Step until all of them decode; the sequences by their requests."""
        for number in range(sequences):
            self._submit(work, number, tokens)
        live = self.engine.lifecycle.live
        texts = {request.job.id: request.sequences[0] for request in live}
        while len(self.engine.batch.running) < sequences:
            self.engine.step()
        return texts

    def run(self, work: Work, sequences: int, tokens: int) -> tuple[Speed, list[list[int]]]:
        """From the first step in which all decode to the one in which the first of them ends; and the answers.

        What follows is not measured: the others run on in a smaller batch, which computes fewer tokens a second with
        and without proposals. A server would have put the next request into the slot.
        """
        engine = self.engine
        answers: dict[str, list[int]] = {}
        texts = self.begin(work, sequences, tokens)
        start, cpu, before = time.perf_counter(), time.process_time(), engine.stats()
        speed: Speed | None = None
        while engine.busy:
            for name, event in engine.step():
                if isinstance(event, Finished):
                    sequence = texts[name]
                    answers[name] = sequence.tokens[len(sequence.request.job.prompt) :]
            if answers and speed is None:
                seconds, spent, after = time.perf_counter() - start, time.process_time() - cpu, engine.stats()
                count = after.completion_tokens - before.completion_tokens
                speed = Speed(count / seconds, count / spent)
                self._count(before, after, sequences)
        assert speed is not None
        return speed, list(answers.values())

    def _count(self, before: EngineStats, after: EngineStats, sequences: int) -> None:
        self.steps += after.steps - before.steps
        self.given += (after.completion_tokens - before.completion_tokens) / sequences
        self.proposed += after.draft_tokens - before.draft_tokens
        self.accepted += after.accepted_tokens - before.accepted_tokens


def parts_of_a_step(subject: Subject, proposed: int, tokens: int, rounds: int) -> dict[str, float]:
    """Seconds of this thread for each step that checks so many proposals of one sequence, by what they go to, in the
    round that took least; and the tokens that such a step gives."""
    from pippin_kernels import Decoder, Drafter, Kernels

    from pippin.engines.language.sampling.sampler import BatchSampler
    from pippin.engines.language.step.engine import LanguageEngine
    from pippin.engines.language.step.speculation.verification import Speculation

    object.__setattr__(
        subject.speculation.pace, "lengths", lambda chances, rooms: [min(proposed, room) for room in rooms]
    )
    subject.run("prose", 1, 8)  # so that arrays of this width are there
    watched: dict[str, tuple[Any, str]] = {
        "the model's layers": (Decoder, "run"),
        "its projection": (Kernels, "product_into"),
        "proposing": (Speculation, "proposals"),
        "of that the head's call": (Drafter, "run"),
        "choosing tokens": (BatchSampler, "sample_ahead" if proposed else "sample"),
        "the whole step": (LanguageEngine, "step"),
    }
    found = []
    for _ in range(rounds):
        spent: dict[str, Counter[str]] = {name: Counter() for name in watched}
        subject.steps, subject.given = 0, 0.0
        with ExitStack() as stack:
            for name, (owner, method) in watched.items():
                stack.enter_context(counted(owner, method, spent[name]))
            speed, _ = subject.run("prose", 1, tokens)
        parts = {name: spent[name][method] / subject.steps for name, (_, method) in watched.items()}
        parts[ALL_THREADS] = subject.given / subject.steps / speed.cpu_second
        found.append({**parts, GIVEN: subject.given / subject.steps})
    return min(found, key=lambda each: each[ALL_THREADS])


ALL_THREADS = "of all threads"
GIVEN = "tokens that it gives"


def print_parts(model: Path, draft: Path | None, tokens: int, rounds: int) -> None:
    """`draft`: the folder of the head; None for the one in the model's own checkpoint."""
    lengths = (0, 1, 2, 3)
    head = {"mtp": True} if draft is None else {"draft_model_path": str(draft)}
    subject = Subject(model, True, threads=1, num_draft_tokens=max(lengths), **head)
    columns = [parts_of_a_step(subject, proposed, tokens, rounds) for proposed in lengths]
    print("| CPU ms of a step that checks | nothing | 1 proposal | 2 | 3 |\n|---|---|---|---|---|")
    for name in columns[0]:
        scale = 1 if name == GIVEN else 1000
        print(f"| {name} | {' | '.join(f'{scale * column[name]:.2f}' for column in columns)} |")
    plain = columns[0][ALL_THREADS]
    gains = (column[GIVEN] * plain / column[ALL_THREADS] for column in columns)
    print(f"| tokens a second of CPU beside plain steps | {' | '.join(f'{gain:.2f}' for gain in gains)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--work", nargs="+", default=["edit", "predicted", "prose"])
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--proposed", type=int, default=8)
    parser.add_argument("--lookup", action="store_true", help="with prompt lookup beside the head")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--parts", action="store_true", help="where the time of a step goes, with --draft")
    parser.add_argument(
        "--mtp", action="store_true", help="with --parts: the head in the model's own checkpoint"
    )
    parser.add_argument("--kernels", choices=("on", "off"), default="on")
    given = parser.parse_args()
    if given.mtp and (not given.parts or given.draft is not None):
        parser.error("--mtp belongs to --parts, and takes the place of --draft")
    if given.parts and given.draft is None and not given.mtp:
        parser.error("--parts shows the steps of a head: name its folder by --draft, or give --mtp")
    accelerate_blas(ModelOptions(), None)
    if given.parts:
        print_parts(given.model, given.draft, given.tokens, given.rounds)
        return
    proposals: dict[str, Any] = {"prompt_lookup": True} if given.draft is None else {}
    if given.draft is not None:
        proposals |= {"draft_model_path": str(given.draft), "prompt_lookup": given.lookup}
    kernels = given.kernels == "on"
    plain = Subject(given.model, kernels)
    with_options = Subject(given.model, kernels, num_draft_tokens=given.proposed, **proposals)
    predicting = Subject(given.model, kernels, num_draft_tokens=given.proposed)
    if given.wrong:
        with_options.draft_wrongly()
    print(
        "work       sequences  plain  with  ratio   cpu  proposed  accepted  a step  same answers", flush=True
    )
    for work in given.work:
        subject = predicting if work == "predicted" else with_options
        for sequences in given.sequences:
            subject.proposed = subject.accepted = subject.steps = 0
            subject.given = 0.0
            rounds, same = [], 0
            for _ in range(given.rounds):
                without, expected = plain.run(work, sequences, given.tokens)
                speed, answers = subject.run(work, sequences, given.tokens)
                rounds.append((without, speed))
                same += sum(map(list.__eq__, sorted(expected), sorted(answers)))
            ratio = statistics.median(speed.second / without.second for without, speed in rounds)
            work_ratio = statistics.median(speed.cpu_second / without.cpu_second for without, speed in rounds)
            one, other = (
                statistics.median(speed.second for speed in column) for column in zip(*rounds, strict=True)
            )
            share = subject.accepted / subject.proposed if subject.proposed else 0.0
            figures = f"{one:5.0f} {other:5.0f}  {ratio:5.2f} {work_ratio:5.2f}"
            a_step = subject.given / subject.steps
            fate = f"{subject.proposed:8}  {share:8.0%}  {a_step:6.2f}  {same} of {sequences * given.rounds}"
            print(f"{work:10} {sequences:9}  {figures}  {fate}", flush=True)


if __name__ == "__main__":
    main()
