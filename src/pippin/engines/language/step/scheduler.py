"""Who runs when: admission, order of prompts, sizes of chunks, whom to preempt. Pure decisions, no arrays."""

from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache import capacity as sizes
from pippin.engines.language.kv_cache.capacity import length_class, rounded
from pippin.engines.language.kv_cache.slots import SlotRequest

REMEMBERED = 24  # steps of each kind
# As many as are taken to cost what the fixed part does, for want of knowledge.
ROWS, TOKENS, GLANCES, COPIES = 64, 256, 1 << 20, 1 << 12
STRAY = 2.0  # times what was expected: longer steps count as so long, for something else held them up
PARTS = 6
STALE = (
    4  # steps that a fit may miss where it only tells strays: one for each step would cost a token's own work
)
ENOUGH = 8  # steps after which there is something to expect


@dataclass(frozen=True)
class Step:
    rows: int  # that decoded
    tokens: int  # of prompts
    glances: float  # pairs of such a token and one before it in its prompt
    copies: int  # tokens of prefixes and rows
    seconds: float

    @property
    def features(self) -> tuple[float, ...]:
        computes = bool(self.tokens)
        prompts = computes, self.tokens / TOKENS, self.glances / GLANCES, self.copies / COPIES
        return bool(self.rows), self.rows / ROWS, *prompts


def _held() -> deque[Step]:
    return deque(maxlen=REMEMBERED)


@dataclass
class StepCost:
    """Least squares over the last steps of each kind, no part below zero."""

    _kinds: dict[tuple[bool, bool], deque[Step]] = field(default_factory=dict)
    _parts: NDArray[np.float64] = field(default_factory=lambda: np.zeros(PARTS))
    _unfitted: int = 0  # steps since the parts were fitted

    def observe(self, step: Step) -> None:
        kind = self._kinds.setdefault((step.rows > 0, step.tokens > 0), _held())
        if len(kind) >= ENOUGH:
            step = replace(step, seconds=min(step.seconds, STRAY * self._expected(step, STALE)))
        kind.append(step)
        self._unfitted += 1

    def decoding(self, rows: int) -> float:
        """Seconds that a step of so many rows takes by itself; 0 before any was measured."""
        return self._expected(Step(rows, 0, 0.0, 0, 0.0))

    def affordable(self, seconds: float, context: int) -> int | None:
        """Tokens after `context` others of a prompt that take so long, at most twice the most of late; None before any
        measurement."""
        computed = [step.tokens for kind, steps in self._kinds.items() if kind[1] for step in steps]
        if not computed:
            return None
        most = 2 * max(computed)
        fixed, token, glance = map(float, self._fitted()[2:5])
        rest = max(0.0, seconds - fixed)
        each = token / TOKENS + glance * context / GLANCES
        return int(rest / each) if each * most > rest else most if rest else 0

    def _expected(self, step: Step, stale: int = 0) -> float:
        return float(self._fitted(stale) @ np.array(step.features))

    def _fitted(self, stale: int = 0) -> NDArray[np.float64]:
        if self._unfitted > stale:
            self._parts = _fit([step for steps in self._kinds.values() for step in steps])
            self._unfitted = 0
        return self._parts


def _fit(steps: list[Step]) -> NDArray[np.float64]:
    """The parts in seconds. Of those that explain the steps equally well, the smallest."""
    parts = np.zeros(PARTS)
    features = np.array([step.features for step in steps])
    seconds = np.array([step.seconds for step in steps])
    kept = list(range(PARTS))
    while kept:
        found = np.linalg.lstsq(features[:, kept], seconds, rcond=1e-6)[0]
        if found.min() >= 0:
            parts[kept] = found
            break
        kept.pop(int(found.argmin()))
    return parts


Phase = Literal["waiting", "prefill", "running"]

SMALLEST_CHUNK = 16  # tokens
FIRST_CHUNK = 64  # beside decoding, before anything was measured
TOO_FEW_STEPS = 2  # of whose time a chunk could make nothing
LEAST_STEPS, MOST_STEPS = 3, 8  # that a chunk may take the time of, where the target leaves too little
FOR_EACH = 5  # steps, were there as many prompts that wait as rows that run
MOST_FAVOURED = 2  # chunks in a row for a prompt that has waited, while another has less left


@dataclass(eq=False, kw_only=True)
class Ticket:
    """One prompt to compute and the rows that it will become; afterwards one row each."""

    id: str  # of the request
    priority: int
    arrival: int  # counts submissions; kept over a preemption
    length: int  # tokens in the prompt, then in the row
    growth: int  # tokens that may still be added
    rows: int = 1
    computed: int = 0  # of the prompt
    phase: Phase = "waiting"
    held: bool = False  # waits for another ticket to compute the prefix that they share
    kind: int = 0  # class of lengths whose rows it lies beside, from its admission on; never lower again
    passed: int = 0  # prompt tokens that were computed for others since this one was admitted
    reserved: bool = False  # its row has a slot already

    @property
    def remaining(self) -> int:
        return self.length - self.computed

    def grow(self) -> None:
        """A token was added to the row."""
        self.length += 1
        self.growth -= 1
        self.kind = max(self.kind, length_class(self.length + 1))

    def slot_request(self, following: int) -> SlotRequest:
        """What a row of this ticket asks for; as many of its class are `following`."""
        return SlotRequest(
            length=self.length, growth=self.growth, length_class=self.kind, following=following
        )

    @property
    def charged(self) -> int:
        """Tokens that a row of this ticket is charged for."""
        return self.length + min(self.growth, sizes.GROWTH_CHARGED)


def no_bytes(places: int) -> int:
    return 0


@dataclass(kw_only=True)
class Limits:
    max_rows: int
    queue_size: int
    prefill_chunk: int  # tokens
    target_gap: float  # seconds
    row_bytes: Callable[[int], int]  # of one row with places for so many tokens
    prompt_bytes: Callable[[int], int]  # of a prompt's own cache
    memory: int  # bytes for live rows and prompts under way
    slack: int = 0  # places that a row has beyond its tokens
    prompts_in_slots: bool = False  # a prompt that becomes one row is computed where that will lie
    aside_bytes: Callable[[int], int] = no_bytes  # of what such a prompt has beside its slot
    draft_bytes: Callable[[int], int] = no_bytes  # of what a draft model keeps for a row


@dataclass
class Scheduler:
    limits: Limits
    tickets: list[Ticket] = field(default_factory=list)
    step_cost: StepCost = field(default_factory=StepCost)
    _glances: float = 0.0  # of this step's prompt tokens at earlier ones
    _copies: int = 0  # tokens that this step copies
    _favoured: int = (
        0  # chunks in a row that went to a prompt because it had waited, though another had less left
    )

    def phase(self, phase: Phase) -> list[Ticket]:
        return [ticket for ticket in self.tickets if ticket.phase == phase]

    def add(self, ticket: Ticket) -> None:
        """Raises `ServerError` when the ticket can never run, or when the queue is full."""
        limits = self.limits
        if ticket.rows > limits.max_rows:
            raise ServerError(
                "invalid_request",
                f"{ticket.rows} choices were asked for, and at most {limits.max_rows} run at once (max_num_seqs).",
                "n",
            )
        need = self._charge([ticket])
        if need > limits.memory:
            raise ServerError(
                "context_length_exceeded",
                f"This request has {ticket.length} prompt tokens and needs {need / 2**20:.1f} MiB of KV cache, and "
                f"the server has {limits.memory / 2**20:.1f} MiB for it: shorten the prompt or ask for fewer choices.",
                "messages",
            )
        waiting = self.phase("waiting")
        if len(waiting) >= limits.queue_size:
            raise ServerError(
                "overloaded",
                f"{len(waiting)} requests are waiting, which is as many as the queue holds: try again later.",
                retry_after=max(1.0, self.step_cost.decoding(len(self.phase("running"))) * 100),
            )
        self.tickets.append(ticket)

    def requeue(self, ticket: Ticket) -> None:
        """Put a preempted row back; never refused."""
        ticket.phase, ticket.computed, ticket.held, ticket.passed = "waiting", 0, False, 0
        ticket.kind, ticket.reserved = 0, False
        self.tickets.append(ticket)

    def drop(self, gone: Iterable[Ticket]) -> None:
        gone = set(gone)
        self.tickets = [ticket for ticket in self.tickets if ticket not in gone]

    def admit(self) -> list[Ticket]:
        """Move tickets from the queue to prefill, best first, as long as rows and bytes suffice."""
        active = [ticket for ticket in self.tickets if ticket.phase != "waiting"]
        admitted: list[Ticket] = []
        for ticket in sorted(self.phase("waiting"), key=lambda ticket: (-ticket.priority, ticket.arrival)):
            together = [*active, *admitted, ticket]
            if sum(each.rows for each in together) > self.limits.max_rows:
                break
            if (active or admitted) and not self._fit(together):
                break
            ticket.phase = "prefill"
            ticket.kind = length_class(ticket.charged)
            admitted.append(ticket)
        return admitted

    def _fit(self, tickets: list[Ticket]) -> bool:
        """Both as they will be, when some may have gone over to another class, and as they are."""
        return max(self._charge(tickets), self._charge(tickets, growth=1)) <= self.limits.memory

    def chunk(self) -> int:
        """Prompt tokens that this step may compute."""
        limits = self.limits
        running, waiting = len(self.phase("running")), len(self.phase("prefill"))
        if not running:
            return limits.prefill_chunk
        decoding = self.step_cost.decoding(running)
        seconds = limits.target_gap - decoding
        if seconds < TOO_FEW_STEPS * decoding:
            # The gap cannot be kept, and what begins a chunk, reading the weights, takes most of a step: prompts get
            # the time of a few, and of more where many wait for few. Whoever joins sooner shares more steps with the
            # others, so that all are done sooner.
            seconds = min(max(LEAST_STEPS, FOR_EACH * waiting / running), MOST_STEPS) * decoding
        ticket = self.next_prompt()
        context = ticket.computed if ticket is not None else 0
        tokens = self.step_cost.affordable(seconds, context)
        return min(max(SMALLEST_CHUNK, FIRST_CHUNK if tokens is None else tokens), limits.prefill_chunk)

    def next_prompt(self, besides: Container[Ticket] = ()) -> Ticket | None:
        """Whose prompt is computed next: highest priority, then least left to do, less what it has waited for.

        Counting what was computed for others in the meantime keeps long prompts from starving behind short ones. One
        whose turn has so come would keep it to its end: after `MOST_FAVOURED` chunks it is whose least is left.
        """
        ready = [ticket for ticket in self._ready() if ticket not in besides]
        if not ready:
            return None
        waited = self._favoured < MOST_FAVOURED

        def order(ticket: Ticket) -> tuple[int, int, int]:
            return -ticket.priority, ticket.remaining - (ticket.passed if waited else 0), ticket.arrival

        return min(ready, key=order)

    def _ready(self) -> list[Ticket]:
        return [ticket for ticket in self.phase("prefill") if ticket.remaining and not ticket.held]

    def done(self) -> list[Ticket]:
        """Whose prompts are computed, and whose rows do not run yet."""
        return [ticket for ticket in self.phase("prefill") if not ticket.remaining]

    def reserves(self, ticket: Ticket) -> bool:
        """Whether its prompt is computed in the slot of its row."""
        return self.limits.prompts_in_slots and ticket.rows == 1

    def begun(self, ticket: Ticket, known: int) -> None:
        """So much of the prompt need not be computed."""
        ticket.computed = known
        self._copies += known

    def computed(self, ticket: Ticket, tokens: int) -> None:
        self._glances += tokens * (ticket.computed + tokens / 2)
        shorter = any(
            each.remaining < ticket.remaining and each.priority >= ticket.priority for each in self._ready()
        )
        self._favoured = self._favoured + 1 if shorter else 0
        ticket.computed += tokens
        for other in self.tickets:
            if other is not ticket and other.phase == "prefill":
                other.passed += tokens

    def coming(self, ticket: Ticket) -> int:
        """Rows of its length class that are on their way besides, without a slot yet."""
        others = [each for each in self.phase("prefill") if each is not ticket and not each.reserved]
        return sum(each.rows for each in others if each.kind == ticket.kind)

    def split(self, ticket: Ticket) -> list[Ticket]:
        """The prompt is computed: its rows run, with a ticket each."""
        rows = [
            Ticket(
                id=ticket.id,
                priority=ticket.priority,
                arrival=ticket.arrival,
                length=ticket.length,
                growth=ticket.growth,
                computed=ticket.length,
                kind=ticket.kind,
                phase="running",
            )
            for _ in range(ticket.rows)
        ]
        if not ticket.reserved:
            self._copies += ticket.length * ticket.rows
        self.drop([ticket])
        self.tickets.extend(rows)
        return rows

    def victim(self) -> Ticket | None:
        """Who is to be preempted, if the live rows outgrow the memory: lowest priority, then youngest. Rows before
        prompts under way, whose work would be lost; these only where the memory itself has shrunk."""
        active = [ticket for ticket in self.tickets if ticket.phase != "waiting"]
        if len(active) < 2 or self._charge(active, growth=1) <= self.limits.memory:
            return None
        running = [ticket for ticket in active if ticket.phase == "running"]
        return min(
            running or active, key=lambda each: (not self.can_wait(each), each.priority, -each.arrival)
        )

    def can_wait(self, ticket: Ticket) -> bool:
        """Whether it can be computed anew, if need be alone: as a prompt it may be larger than the row that it is."""
        return self._charge([replace(ticket, phase="prefill")], growth=1) <= self.limits.memory

    def hopeless(self) -> list[Ticket]:
        """Prompts that do not fit any more, even alone, since the memory has shrunk."""
        return [each for each in self.tickets if each.phase != "running" and not self.can_wait(each)]

    def overgrown(self) -> Ticket | None:
        """The only row left, when it has outgrown the memory by itself."""
        active = [ticket for ticket in self.tickets if ticket.phase != "waiting"]
        if (
            len(active) == 1
            and active[0].phase == "running"
            and self._charge(active, growth=1) > self.limits.memory
        ):
            return active[0]
        return None

    def for_rows(self) -> int:
        """Bytes that the running rows may take now: what the prompts under way and a draft model leave."""
        drafts = sum(self._draft_bytes(each.length + 1) for each in self.phase("running"))
        return self.limits.memory - drafts - sum(map(self._prompt_bytes, self.phase("prefill")))

    def observe(self, seconds: float, prompt_tokens: int, rows: int) -> None:
        """Learn from a step that took so long, in which so many rows decoded."""
        if rows or prompt_tokens:
            self.step_cost.observe(Step(rows, prompt_tokens, self._glances, self._copies, seconds))
        self._glances, self._copies = 0.0, 0

    def _charge(self, tickets: list[Ticket], growth: int | None = None) -> int:
        """Bytes of these rows, padded as their class is: every row to the longest, rounded up to a step.

        A prompt under way that has no slot has a cache of its own, which may be larger than the rows that it becomes.
        """
        row_bytes, slack = self.limits.row_bytes, self.limits.slack
        longest: dict[int, int] = {}
        charged = []
        for each in tickets:
            tokens = each.charged if growth is None else each.length + growth
            kind = max(each.kind, length_class(tokens))
            longest[kind] = max(longest.get(kind, 0), tokens)
            charged.append((each, tokens, kind))
        one = {kind: row_bytes(rounded(tokens + slack)) for kind, tokens in longest.items()}
        size = 0
        for each, tokens, kind in charged:
            rows = each.rows * (one[kind] + self._draft_bytes(tokens))
            if each.phase == "running":
                size += rows
            elif self.reserves(each):
                size += rows + self._prompt_bytes(each)
            else:
                size += max(rows, self._prompt_bytes(each))
        return size

    def _draft_bytes(self, tokens: int) -> int:
        return self.limits.draft_bytes(tokens + self.limits.slack + sizes.CAPACITY_STEP)

    def _prompt_bytes(self, ticket: Ticket) -> int:
        """Of what a prompt has beside the slots of its rows."""
        # A step more: the cache of a prompt allots whole steps to each chunk, wherever that begins.
        size = self.limits.aside_bytes if self.reserves(ticket) else self.limits.prompt_bytes
        return size(ticket.length + sizes.CAPACITY_STEP)
