"""The messages to and from a process that verifies a model, one JSON object a line."""

from typing import Any, Final, Literal, get_args

from msgspec import Struct, field


class Step(Struct, frozen=True, tag="step"):
    """Progress: `done` of `total` parts are checked. `total` is 0 where nothing is counted."""

    done: int
    total: int
    what: str


class VerificationFailed(Struct, frozen=True, tag="failed"):
    message: str


Severity = Literal["fault", "warning", "note"]
SectionName = Literal["files", "tokens", "template", "numbers", "tools", "questions"]
SECTIONS: Final[tuple[SectionName, ...]] = get_args(SectionName)


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that was found. A fault changes answers; a warning may; a note is worth knowing."""

    code: str  # the same in every report: `eos-disagree`
    severity: Severity
    text: str  # what was found, with its figures
    meaning: str = ""  # what it does to answers
    advice: str = ""  # what helps, in words
    command: str = ""  # what does that, or finds who published the model, as it can be typed


class Section(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a report."""

    name: SectionName
    findings: tuple[Finding, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)  # what was measured, by a label for readers
    seconds: float = 0.0
    left_out: str = ""  # why nothing was checked


class Report(Struct, frozen=True, kw_only=True, tag="report"):
    """What was found of one model."""

    model: str
    folder: str
    at: int  # seconds since the epoch
    sections: tuple[Section, ...]
    against: str | None = None  # the folder that it was compared with

    def count(self, severity: Severity) -> int:
        return sum(each.severity == severity for part in self.sections for each in part.findings)

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        if self.count("fault"):
            return f"{_counted(self.count('fault'), 'fault')}, {_counted(self.count('warning'), 'warning')}"
        return _counted(self.count("warning"), "warning") if self.count("warning") else "no fault found"


class Verification(Struct, frozen=True, kw_only=True):
    """What to verify, in this order."""

    sections: tuple[SectionName, ...] = SECTIONS
    against: str | None = None  # a folder to compare with


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
