"""Who runs when: admission, order of prompts, chunk sizes, preemption. Pure decisions, without MLX arrays.

The cost of a step is learnt from the last steps (`StepCost`), so that a chunk is sized to keep the gap between tokens.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from operator import mul

import numpy as np
from numpy.typing import NDArray

from pippin.core.errors import ServerError
from pippin.engines.base import first_of, places_of, queue_is_full, yielding_to
from pippin.engines.language.kv_cache.kinds import base as sizes
from pippin.engines.language.kv_cache.kinds.base import SlotRequest, charged_growth, length_class, rounded
from pippin.engines.language.step.sequences import Prefilling, Running, Waiting

REMEMBERED = 24  # steps of each kind
# Priors: so many of each are taken to cost as much as the fixed part, for want of measurements.
SEQUENCES, TOKENS, PAIRS, COPIES = 64, 256, 1 << 20, 1 << 12
OUTLIER = 2.0  # times the expected time: a longer step counts as this long, because something else delayed it
PARTS, KINDS = 6, 4
# How many steps a fit may lag where it only tells outliers: a fit for each step would cost as much as a token's work.
STALE = 24
NEXT_TO_NOTHING = 1e-11
SHORTEST = 1e-4  # seconds: shorter steps weigh no more
ENOUGH = 8  # steps before there is an expectation


@dataclass(frozen=True)
class Step:
    """What a step did, and how long it took."""

    sequences: int  # that decoded
    tokens: int  # of prompts
    pairs: float  # of a prompt token and an earlier one of its prompt, to which it attends
    copies: int  # tokens of prefixes and sequences that were copied
    seconds: float

    @property
    def features(self) -> tuple[float, ...]:
        prefills = bool(self.tokens)
        prompts = prefills, self.tokens / TOKENS, self.pairs / PAIRS, self.copies / COPIES
        return bool(self.sequences), self.sequences / SEQUENCES, *prompts


@dataclass
class StepCost:
    """Predicts the time of a step: least squares over the last steps of each kind, no part below zero.

    The kind of a step is whether it decoded and whether it prefilled.
    """

    # A row for each step: its features and its seconds. Rows of zeros weigh nothing.
    _known: NDArray[np.float64] = field(default_factory=lambda: np.zeros((KINDS, REMEMBERED, PARTS + 1)))
    _counts: list[int] = field(default_factory=lambda: [0] * KINDS)
    _parts: list[float] = field(default_factory=lambda: [0.0] * PARTS)  # seconds
    _unfitted: int = 0  # steps since the last fit

    def observe(self, step: Step) -> None:
        """Learn from a step."""
        kind = 2 * (step.tokens > 0) + (step.sequences > 0)
        features, seconds, number = step.features, step.seconds, self._counts[kind]
        if number >= ENOUGH and seconds > OUTLIER * self._expected(features, STALE):
            seconds = min(seconds, OUTLIER * self._expected(features))
        self._known[kind, number % REMEMBERED] = *features, seconds
        self._counts[kind] += 1
        self._unfitted += 1

    def decoding(self, sequences: int) -> float:
        """Seconds that a step of `sequences` sequences takes without prompts; 0 before any measurement."""
        return self._expected(Step(sequences, 0, 0.0, 0, 0.0).features)

    @property
    def fixed(self) -> float:
        """Seconds that a chunk takes however few tokens it has; 0 before any measurement."""
        return self._fitted()[2]

    def affordable(self, seconds: float, context: int) -> int | None:
        """How many tokens of a prompt, after `context` others, take `seconds`: at most twice the most of late. None
        before any measurement."""
        most = 2 * round(float(self._known[:, :, 3].max()) * TOKENS)
        if not most:
            return None
        token, pair = self._fitted()[3:5]
        rest = max(0.0, seconds - self.fixed)
        each = token / TOKENS + pair * context / PAIRS
        return int(rest / each) if each * most > rest else most if rest else 0

    def _expected(self, features: tuple[float, ...], stale: int = 0) -> float:
        seconds: float = sum(map(mul, self._fitted(stale), features))
        return seconds

    def _fitted(self, stale: int = 0) -> list[float]:
        if self._unfitted > stale:
            self._parts = _fit(self._known.reshape(-1, PARTS + 1))
            self._unfitted = 0
        return self._parts


def _fit(known: NDArray[np.float64]) -> list[float]:
    """The parts in seconds: among those that explain the steps equally well, the smallest."""
    # The normal equations are few numbers, however many steps there are. Next to nothing on their diagonal gives them
    # one solution where several explain the steps: close to the smallest.
    # The longer a step, the less it weighs: what delays long ones would leave nothing for short ones.
    products = known.T @ (known / np.maximum(known[:, PARTS:], SHORTEST))
    products.flat[:: PARTS + 2] += NEXT_TO_NOTHING * products.trace()
    parts, kept = [0.0] * PARTS, list(range(PARTS))
    while kept:
        found = np.linalg.solve(products[kept][:, kept], products[kept, PARTS]).tolist()
        least = min(found)
        if least >= 0:
            for part, seconds in zip(kept, found, strict=True):
                parts[part] = seconds
            break
        kept.pop(found.index(least))
    return parts


SMALLEST_CHUNK = 16  # tokens
FIRST_CHUNK = 64  # tokens beside running sequences, before any step was measured
MOST_STEPS = 8  # decode steps whose time a chunk may take where the target leaves less than one
FOR_EACH = 3  # decode steps for each further prompt that waits, divided by the sequences that run
WORTH = 2  # times the fixed cost of a chunk: with less time it would read the weights for almost nothing
TARGET_GAP = 0.1  # seconds, where none is given
# The same where a pass holds up the host: nobody sees shorter gaps, and prompts wait less.
TARGET_IN_ORDER = 0.03
PART = 0.8  # of the time that sequences decode, for the part of a pass that rests: then gaps are not twice as long
PARTS_OF_CHUNK = 8  # of which each has some layers
LONGEST = 1 << 20  # tokens; no window is wider
ANY_PAIRS = LONGEST * LONGEST * 2  # no chunk has more
MOST_FAVOURED = 2  # chunks in a row for a prompt because it has waited, while another has fewer tokens left

NOTHING_LATE = (0, 0.0, 0)
"""Tokens, pairs and copies of a step whose prompts are all computed when it ends."""

Stage = Waiting | Prefilling | Running


@dataclass(kw_only=True)
class StepLimits:
    """Limits on the work of one step, and on the memory that sequences take."""

    max_sequences: int
    queue_size: int
    prefill_chunk: int  # tokens
    target_gap: float  # seconds between two tokens of a running sequence
    sequence_bytes: Callable[[int], int]  # of one sequence, by its capacity in tokens
    prompt_bytes: Callable[[int], int]  # of a prompt's own cache, by its tokens
    memory: int  # bytes for running sequences and prompts under way
    attention_pairs: int = ANY_PAIRS  # the most of a chunk's token and a token that it attends to
    slack: int = 0  # capacity that a sequence has beyond its tokens
    prompts_in_slots: bool = False  # a lone sequence's prompt is computed in its slot
    aside_bytes: Callable[[int], int] = lambda tokens: 0  # of such a prompt, besides its slot
    draft_bytes: Callable[[int], int] = lambda tokens: 0  # of what a drafter keeps for a sequence

    def longest_chunk(self, context: int) -> int:
        """The most tokens of a chunk after `context` tokens, at least one: each attends to the context and to the
        others. A prompt's last chunk may be a quarter longer."""
        within = (math.isqrt(context * context + 4 * self.attention_pairs) - context) // 2
        return min(self.prefill_chunk, max(1, within))


def target_gap(milliseconds: float | None, *, overlaps: bool) -> float:
    """Seconds, by the option of that name."""
    if milliseconds is not None:
        return milliseconds / 1e3
    return TARGET_GAP if overlaps else TARGET_IN_ORDER


class Scheduler:
    """The queue, the prompts under way and the running sequences, of which it knows lengths, counts and priorities."""

    def __init__(self, limits: StepLimits) -> None:
        self.limits = limits
        self.waiting: list[Waiting] = []
        self.prefilling: list[Prefilling] = []
        self.running: list[Running] = []
        self.step_cost = StepCost()
        self._pairs = 0.0  # of this step's prompt tokens, each with a token before it
        self._copies = 0  # tokens that this step copies
        self._late = NOTHING_LATE
        self._rested = False  # this step has computed a part of a pass
        # Chunks in a row that went to a prompt because it had waited, though another had fewer tokens left.
        self._favoured = 0

    def add(self, waiting: Waiting) -> None:
        """Take a new prompt. Raises `ServerError` when it can never run, or when the queue is full."""
        limits = self.limits
        if waiting.count > limits.max_sequences:
            raise ServerError(
                "invalid_request",
                f"{waiting.count} choices were asked for, and at most {limits.max_sequences} run at once "
                "(max_num_seqs).",
                "n",
            )
        need = self._charge([waiting])
        if need > limits.memory:
            raise ServerError(
                "context_length_exceeded",
                f"This request has {waiting.length} prompt tokens and needs {need / 2**20:.1f} MiB of KV cache, and "
                f"the server has {limits.memory / 2**20:.1f} MiB for it: shorten the prompt or ask for fewer choices.",
                "messages",
            )
        if len(self.waiting) >= limits.queue_size:
            retry_after = max(1.0, self.step_cost.decoding(len(self.running)) * 100)
            raise queue_is_full(len(self.waiting), retry_after)
        self.waiting.append(waiting)

    def requeue(self, waiting: Waiting) -> None:
        """Take back a preempted prompt; never refused."""
        self.waiting.append(waiting)

    def drop(self, stage: Stage) -> None:
        """Remove a prompt or a sequence that has ended or changes its stage."""
        match stage:
            case Waiting():
                self.waiting.remove(stage)
            case Prefilling():
                self.prefilling.remove(stage)
            case Running():
                self.running.remove(stage)

    def admit(self) -> list[Prefilling]:
        """Move prompts from the queue to prefill, best first, while sequences and bytes suffice."""
        admitted: list[Prefilling] = []
        while self.waiting:
            active: list[Prefilling | Running] = [*self.prefilling, *self.running]
            waiting = first_of(self.waiting, places_of(active))
            if not self._has_place(waiting, active):
                break
            self.waiting.remove(waiting)
            admitted.append(Prefilling(**waiting.given(), length_class=length_class(_reckoned(waiting))))
            self.prefilling.append(admitted[-1])
        return admitted

    def _has_place(self, waiting: Waiting, active: list[Prefilling | Running]) -> bool:
        """Whether sequences and bytes suffice for the prompt beside these."""
        if sum(each.count for each in active) + waiting.count > self.limits.max_sequences:
            return False
        stages = [*active, waiting]
        # At their size now, and at the size that they are admitted for (maybe of a higher class).
        return not active or max(self._charge(stages), self._charge(stages, growth=1)) <= self.limits.memory

    def chunk(self, *, rests: bool = False) -> int:
        """The most prompt tokens to compute at once: in this step, or in several where their pass `rests`."""
        limits = self.limits
        running = len(self.running)
        if not running:
            return limits.prefill_chunk
        decoding = self.step_cost.decoding(running)
        seconds = self.for_prompts(decoding, rests=rests) * (PARTS_OF_CHUNK if rests else 1)
        prompt = self.next_prompt()
        context = prompt.computed if prompt is not None else 0
        tokens = self.step_cost.affordable(seconds, context)
        return min(max(SMALLEST_CHUNK, FIRST_CHUNK if tokens is None else tokens), limits.prefill_chunk)

    def for_prompts(self, decoding: float, *, rests: bool) -> float:
        """Seconds for prompts in a step that decodes for `decoding` seconds."""
        least = PART if rests else 1.0
        seconds = self.limits.target_gap - decoding
        if seconds >= least * decoding:
            return seconds
        # The target cannot be kept. A chunk of a step's time makes the gaps twice as long, which spoils no stream.
        # It gets more if reading the weights would take most of that, and if many prompts wait while few sequences
        # run: the sooner a sequence joins, the more steps it shares with the others, and the sooner all are done.
        for_all = FOR_EACH * (len(self.prefilling) - 1) / len(self.running)
        seconds = min(max(least, for_all), MOST_STEPS) * decoding
        return seconds if rests else max(seconds, WORTH * min(self.step_cost.fixed, decoding))

    def rested(self, tokens: int, seconds: float) -> None:
        """Note that this step has computed a part of a pass over prompts; with the last of its parts, how many
        `tokens` it had, and the `seconds` of all."""
        self._rested = True
        if tokens:
            self.step_cost.observe(Step(0, tokens, self._pairs, 0, seconds))

    def next_prompt(self, besides: Container[Prefilling] = ()) -> Prefilling | None:
        """The prompt to compute next: highest priority, then those of accounts of which nothing runs, then fewest
        tokens left, less those that it has waited for.

        Counting what was computed for others in the meantime keeps long prompts from starving behind short ones. A
        prompt chosen that way would keep its turn, so after `MOST_FAVOURED` chunks the fewest tokens left decide again.
        """
        ready = [prompt for prompt in self._ready() if prompt not in besides]
        if not ready:
            return None
        waited = self._favoured < MOST_FAVOURED
        served = {each.account for each in self.running}

        def order(prompt: Prefilling) -> tuple[int, bool, int, int]:
            left = prompt.left - (prompt.passed if waited else 0)
            return -prompt.priority, prompt.account in served, left, prompt.arrival

        return min(ready, key=order)

    def _ready(self) -> list[Prefilling]:
        return [prompt for prompt in self.prefilling if prompt.left and not prompt.paused]

    def done(self) -> list[Prefilling]:
        """Prompts that are computed and whose sequences do not run yet."""
        return [prompt for prompt in self.prefilling if not prompt.left]

    def pause(self, prompt: Prefilling) -> None:
        """Skip the prompt until `resume`."""
        prompt.paused = True

    def resume(self) -> None:
        """Skip no prompt any more."""
        for prompt in self.prefilling:
            prompt.paused = False

    def begin(self, prompt: Prefilling, known: int, *, in_slot: bool) -> None:
        """Note that a prompt has a cache with `known` tokens copied into it. `in_slot`: its sequence will run there."""
        prompt.computed, prompt.in_slot = known, in_slot
        self._copies += known

    def computed(self, prompt: Prefilling, tokens: int) -> None:
        """Note that `tokens` more tokens of the prompt are in its cache, or of its branches."""
        self._pairs += tokens * (prompt.computed + tokens / 2)
        shorter = any(each.left < prompt.left and each.priority >= prompt.priority for each in self._ready())
        self._favoured = self._favoured + 1 if shorter else 0
        prompt.computed += min(tokens, prompt.remaining)
        for other in self.prefilling:
            if other is not prompt:
                other.passed += tokens

    def slot_request(self, stage: Prefilling | Running) -> SlotRequest:
        """The request for a slot of a sequence that needs one now."""
        others = (each for each in self.prefilling if each is not stage and not each.in_slot)
        return SlotRequest(
            length=stage.length,
            growth=stage.growth,
            length_class=stage.length_class,
            following=sum(each.count for each in others if each.length_class == stage.length_class),
        )

    def start(self, prompt: Prefilling) -> list[Running]:
        """Make a computed prompt's sequences run."""
        if not prompt.in_slot:
            self._copies += prompt.length * prompt.count
        self.drop(prompt)
        started = [
            Running(
                sequence=sequence,
                priority=prompt.priority,
                arrival=prompt.arrival,
                account=prompt.account,
                length=prompt.length,
                growth=prompt.growth,
                length_class=prompt.length_class,
            )
            for sequence in prompt.sequences
        ]
        self.running += started
        return started

    def grew(self, running: Running) -> None:
        """Note that a token was added to the sequence."""
        running.length += 1
        running.growth -= 1
        if running.length in sizes.LENGTH_CLASSES:
            running.length_class = max(running.length_class, length_class(running.length + 1))

    def victim(self) -> Prefilling | Running | None:
        """The one to preempt when the memory is outgrown: lowest priority, then of the account with most sequences,
        then youngest. Prompts under way, whose work would be lost, are chosen only if no sequence runs, which happens
        only after the memory has shrunk; and never one that is alone. Otherwise, one that holds another account's
        place."""
        if (not self.running and len(self.prefilling) < 2) or self.charged <= self.limits.memory:
            return self._intruder() if self.waiting else None
        candidates: list[Prefilling | Running] = [*(self.running or self.prefilling)]
        places = places_of([*self.prefilling, *self.running])

        def order(each: Prefilling | Running) -> tuple[bool, int, int, int]:
            unfit = not self.fits_alone(each.length, each.count)
            return unfit, each.priority, -places[each.account], -each.arrival

        return min(candidates, key=order)

    def _intruder(self) -> Prefilling | Running | None:
        """The next to make place for a prompt of an account that has none, if it gets one thereby: a sequence, or a
        prompt of which nothing is computed yet."""
        active: list[Prefilling | Running] = [*self.prefilling, *self.running]
        places = places_of(active)
        first = first_of(self.waiting, places)
        if places[first.account] or self._has_place(first, active):
            return None
        movable: list[Prefilling | Running] = [each for each in self.running if self.fits_alone(each.length)]
        movable += [each for each in self.prefilling if not each.computed]
        yielding = yielding_to(first, movable, places)
        left = [each for each in active if each not in yielding]
        return yielding[0] if yielding and self._has_place(first, left) else None

    def fits_alone(self, length: int, count: int = 1) -> bool:
        """Whether a prompt of `length` tokens, for `count` sequences, can be computed, if need be alone. It may need
        more memory than the running sequence that it was."""
        return self._with_prompt(count * self._slot_bytes(length + 1), length, count) <= self.limits.memory

    def longest(self) -> int:
        """The longest sequence for which `fits_alone` holds, to within a block of capacity."""
        return sizes.CAPACITY_STEP * bisect_left(
            range(LONGEST // sizes.CAPACITY_STEP),
            True,
            key=lambda steps: not self.fits_alone((steps + 1) * sizes.CAPACITY_STEP),
        )

    def hopeless(self) -> list[Waiting | Prefilling]:
        """Prompts that no longer fit, even alone, since the memory has shrunk."""
        prompts: list[Waiting | Prefilling] = [*self.waiting, *self.prefilling]
        return [each for each in prompts if not self.fits_alone(each.length, each.count)]

    @property
    def charged(self) -> int:
        """Bytes that prompts under way and running sequences need, each with one token more."""
        if self.prefilling:
            return self._charge([*self.prefilling, *self.running], growth=1)
        # In nearly all steps: a tenth of the time.
        return self._of_running(self._slot_bytes)

    def _of_running(self, bytes_of: Callable[[int], int]) -> int:
        """Bytes of running sequences, each with one token more and as long as the longest of its class of lengths."""
        found: dict[int, list[int]] = {}
        for each in self.running:
            found.setdefault(each.length_class, []).append(each.length + 1)
        return sum(len(lengths) * bytes_of(max(lengths)) for lengths in found.values())

    def for_running(self) -> int:
        """Bytes that running sequences may take now: those that prompts under way and a drafter leave."""
        left = self.limits.memory
        for prompt in self.prefilling:
            left -= self._prompt_bytes(prompt.length, prompt.count)
            if rows := prompt.rows:  # which lie in no slots
                left -= rows * self.limits.prompt_bytes(prompt.length + prompt.growth + sizes.CAPACITY_STEP)
        return left - self._of_running(self._draft_bytes)

    def observe(self, seconds: float, prompt_tokens: int, sequences: int, *, late: bool = False) -> int:
        """Learn from a step that took `seconds` and in which `sequences` sequences decoded; `late`: its prompts are
        computed in the time of the next. Returns how many prompt tokens its time was spent on."""
        if self._rested:  # its time tells neither of a chunk nor of sequences alone
            self._pairs, self._copies, self._rested = 0.0, 0, False
            return max(prompt_tokens, 1)
        tokens, pairs, copies = self._late
        self._late = (prompt_tokens, self._pairs, self._copies) if late else NOTHING_LATE
        if not late:
            tokens, pairs, copies = tokens + prompt_tokens, pairs + self._pairs, copies + self._copies
        if sequences or tokens:
            self.step_cost.observe(Step(sequences, tokens, pairs, copies, seconds))
        self._pairs, self._copies = 0.0, 0
        return tokens

    def computes_in_slot(self, count: int) -> bool:
        """Whether a prompt of `count` sequences is computed in the slot of its sequence."""
        return self.limits.prompts_in_slots and count == 1

    def _charge(self, stages: Iterable[Stage], growth: int | None = None) -> int:
        """Bytes of these stages. Each sequence is padded to the longest of its length class, rounded up to a step of
        capacity, and has `growth` tokens more than now, or the tokens that it is admitted for.
        """
        longest: dict[int, int] = {}
        reckoned = []
        for each in stages:
            tokens = _reckoned(each) if growth is None else each.length + growth
            padded_as = length_class(tokens)
            if not isinstance(each, Waiting):
                padded_as = max(padded_as, each.length_class)
            longest[padded_as] = max(longest.get(padded_as, 0), tokens)
            reckoned.append((each, padded_as))
        one = {name: self._slot_bytes(tokens) for name, tokens in longest.items()}
        size = 0
        for each, padded_as in reckoned:
            own = each.count * one[padded_as]
            size += own if isinstance(each, Running) else self._with_prompt(own, each.length, each.count)
        return size

    def _with_prompt(self, sequences: int, length: int, count: int) -> int:
        """Bytes of a prompt whose sequences will take `sequences` bytes. Outside a slot it has a cache of its own,
        which may be larger than they are, and is freed when they run."""
        aside = self._prompt_bytes(length, count)
        return sequences + aside if self.computes_in_slot(count) else max(sequences, aside)

    def _slot_bytes(self, tokens: int) -> int:
        """Bytes of a sequence of so many tokens, with what a drafter keeps of it."""
        limits = self.limits
        return limits.sequence_bytes(rounded(tokens + limits.slack)) + self._draft_bytes(tokens)

    def _draft_bytes(self, tokens: int) -> int:
        limits = self.limits
        return limits.draft_bytes(tokens + limits.slack + sizes.CAPACITY_STEP)

    def _prompt_bytes(self, length: int, count: int) -> int:
        """Bytes of what a prompt needs besides the slots of its sequences."""
        size = self.limits.aside_bytes if self.computes_in_slot(count) else self.limits.prompt_bytes
        # One step more: the cache of a prompt allots whole steps to each chunk, wherever the chunk begins.
        return size(length + sizes.CAPACITY_STEP)


def _reckoned(stage: Stage) -> int:
    """Tokens that a sequence is admitted for."""
    return stage.length + charged_growth(stage.growth)
