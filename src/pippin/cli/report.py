"""A report on a verified model as text for a terminal, and as one page that can be sent to others."""

import time
from html import escape
from typing import Any, Final

from pippin import __version__
from pippin.core.verification import Report, Section

STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse}th,td{text-align:left;padding:.1rem 1rem .1rem 0;font-weight:400}"
    "td{font-weight:600}li{margin:.5rem 0}.fault b{color:#c0392b}.warning b{color:#b9770e}code{font-size:.9em}"
)


def as_text(report: Report) -> str:
    """The report with a line for each finding, and one for what it means and what helps."""
    lines = []
    for section in report.sections:
        figures = ", ".join(f"{name} {_shown(value)}" for name, value in section.figures.items())
        told = f"left out: {section.left_out}" if section.left_out else f"{figures} ({section.seconds:g} s)"
        lines.append(f"{section.name:<10}{told}")
        for finding in section.findings:
            lines.append(f"  {finding.severity:<8}{finding.text}")
            helps = f"What helps: {finding.command}" if finding.command else ""
            if advice := f"{finding.meaning} {helps}".strip():
                lines.append(f"{'':<10}{advice}")
    return "\n".join([*lines, f"{report.model}: {report.verdict}"])


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def as_page(report: Report) -> str:
    """The report as one HTML file that fetches nothing. Folders are left out."""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.at))
    parts = "".join(map(_part, report.sections))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(report.model)}: {report.verdict}</title>'
        f"<style>{STYLE}</style><h1>{escape(report.model)}</h1><p><b>{report.verdict}</b></p>"
        f"<p>Pippin {__version__}, {when}</p>{parts}</html>\n"
    )


def _part(section: Section) -> str:
    left_out = f"<p>Left out: {escape(section.left_out)}</p>" if section.left_out else ""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(_shown(value))}</td></tr>"
        for name, value in section.figures.items()
    )
    items = "".join(
        f'<li class="{each.severity}"><b>{each.severity}</b> {escape(each.text)}<br>{escape(each.meaning)}'
        + (f" <code>{escape(each.command)}</code>" if each.command else "")
        + "</li>"
        for each in section.findings
    )
    items = items or ("" if left_out else "<li>Nothing was found.</li>")
    return f"<h2>{section.name}</h2>{left_out}<table>{rows}</table><ul>{items}</ul>"
