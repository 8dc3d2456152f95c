"""A report on a verified model as text for a terminal."""

from collections.abc import Iterator
from typing import Any

from pippin.core.verification import Finding, Report, Section


def as_text(report: Report) -> str:
    """The report with a line for each finding, and one for what it means and what helps."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    for section in report.sections:
        yield f"{section.name:<10}{_told(section)}"
        for finding in section.findings:
            yield f"  {finding.severity:<8}{finding.text}"
            if finding.meaning or finding.command:
                yield f"{'':<10}{_advice(finding)}"
    yield f"{report.model}: {report.verdict}"


def _told(section: Section) -> str:
    if section.left_out:
        return f"left out: {section.left_out}"
    figures = ", ".join(f"{name} {_shown(value)}" for name, value in section.figures.items())
    return f"{figures} ({section.seconds:g} s)"


def _advice(finding: Finding) -> str:
    helps = f"What helps: {finding.command}" if finding.command else ""
    return f"{finding.meaning} {helps}".strip()


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
