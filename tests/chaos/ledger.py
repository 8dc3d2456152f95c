"""What happened to every request, and what should never have happened."""

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """`broken` is what a run fails for."""

    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    down: list[tuple[float, float]] = field(default_factory=list)  # when there was no server, on purpose
    faults: Counter[str] = field(default_factory=Counter)
    acts: list[tuple[str, float]] = field(default_factory=list)  # each fault, and when it began

    def answered(self, kind: str) -> None:
        self.outcomes[f"answered {kind}"] += 1

    def refused(self, status: int, kind: str) -> None:
        """An error that says what it is; what a fault excuses is listed in `clients.EXCUSED`."""
        self.outcomes[f"{status} {kind}"] += 1

    def begins(self, act: str) -> None:
        self.faults[act] += 1
        self.acts.append((act, time.monotonic()))

    def act_at(self, moment: float) -> str:
        """The fault that was begun last."""
        return next((act for act, began in reversed(self.acts) if began <= moment), "the calm")

    def violation(self, text: str) -> None:
        self.outcomes["VIOLATION"] += 1
        if len(self.broken) < 50:
            self.broken.append(text)

    def was_down(self, began: float) -> bool:
        """Whether the server was away at some time since `began`."""
        return any(end >= began - 0.5 for _, end in self.down)

    def going_down(self) -> None:
        self.down.append((time.monotonic(), float("inf")))

    def up_again(self) -> None:
        self.down[-1] = (self.down[-1][0], time.monotonic())
