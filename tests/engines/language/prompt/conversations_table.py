"""The table in docs/formats.md of what templates do with conversations; run as a module, it writes the page."""

from collections import Counter
from pathlib import Path

from pippin.core.errors import ServerError
from tests.engines.language.prompt.histories import HISTORIES
from tests.engines.language.prompt.test_forms import Template
from tests.output.families import FAMILIES

PAGE = Path(__file__).parents[4] / "docs" / "formats.md"
BEGIN, END = "<!-- table: conversations -->", "<!-- end -->"
WORDS = {
    "text_before_calls": "text before calls",
    "one_call_a_turn": "one call a turn",
    "orphans_as_text": "orphans as text",
    "answered_results": "answered results",
    "merged_turns": "merged turns",
    "user_first": "user first",
    "asked": "asked",
    "without_empty_turns": "no empty turns",
    "one_system": "one system",
    "system_as_user": "system as user",
    "question_in_result": "question in result",
    "system_in_turn": "system in turn",
    "without_thoughts": "no thoughts",
    "calls_as_text": "calls as text",
}


def cells() -> dict[str, dict[str, str]]:
    """For each template and history: empty if it is kept as it is, else the changes, or "refused"."""
    found: dict[str, dict[str, str]] = {}
    for family in FAMILIES:
        template = Template(family)
        row = found.setdefault(family.file, {})
        for name in HISTORIES:
            try:
                row[name] = ", ".join(WORDS[form] for form in template.needed(name))
            except ServerError:
                row[name] = "refused"
    return found


def table() -> str:
    """A line for each outcome, with the templates that have it."""
    templates: dict[str, list[str]] = {}
    for file, row in cells().items():
        changes = Counter(change for change in row.values() if change).most_common()
        templates.setdefault("; ".join(f"{count} {change}" for change, count in changes), []).append(file)
    return "\n".join(
        f"- {said}: {', '.join(f'`{file}`' for file in files)}" if said else f"- none: {len(files)} templates"
        for said, files in templates.items()
    )


def with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
