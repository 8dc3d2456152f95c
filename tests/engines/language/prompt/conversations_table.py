"""The table in docs/formats.md of what templates do with conversations; run as a module, it writes the page."""

import json
import re
import string
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pippin.api.dialects.base import DecodeContext
from pippin.core.conversation import ToolCall, ToolResult
from pippin.core.errors import ServerError
from tests.engines.language.prompt.histories import AGENT, HISTORIES, Conversation
from tests.engines.language.prompt.test_forms import Template, answers
from tests.output.families import FAMILIES, Family
from tests.reports.test_same_conversations import DIALECTS, WRITTEN

PAGE = Path(__file__).parents[4] / "docs" / "formats.md"
BEGIN, END = "<!-- table: conversations -->", "<!-- end -->"
NAMES = {
    "/chat/completions": "Chat",
    "/messages": "Messages",
    "/responses": "Responses",
    "/api/chat": "Ollama",
    "/v1beta/models/{model:path}:generateContent": "Gemini",
}
KEPT, REFUSED = "kept", "refused"
Row = tuple[str, ...]
"""An outcome for each template."""


@cache
def in_dialect(path: str, name: str) -> Conversation:
    """A history as it arrives in an API."""
    body = {"model": "m", **WRITTEN[path](HISTORIES[name])}
    [request] = DIALECTS[path].decode(json.dumps(body).encode(), DecodeContext()).requests
    return request.messages or ()


def outcome(template: Template, path: str, name: str) -> str:
    """What a template needs to write a history whole: kept, the changes, or refused."""
    messages = in_dialect(path, name)
    try:
        needed = [form.replace("_", " ") for form in template.needed(name, messages)]
    except ServerError:
        return REFUSED
    changed = template.forms.of(messages, tools=name in AGENT, generation=answers(HISTORIES[name]))
    needed += [change for change in conversions(template, changed) if change not in needed]
    return " + ".join(needed) or KEPT


def conversions(template: Template, messages: Conversation) -> Iterator[str]:
    """What is changed of a conversation because the template takes the like nowhere."""
    converted = template.renderer.converter.convert(messages, ())
    calls = any(isinstance(part, ToolCall | ToolResult) for message in messages for part in message.parts)
    if calls and not any(entry.get("tool_calls") or "tool_call_id" in entry for entry in converted):
        yield "calls as text"
    roles = Counter(entry["role"] for entry in converted)
    before = Counter("system" if message.role == "developer" else message.role for message in messages)
    if roles["system"] + roles["developer"] < before["system"]:
        yield "one system" if roles["system"] + roles["developer"] else "system in turn"
    if not calls and before["system"] < len(messages) and roles["user"] < before["user"]:
        yield "merged turns"


def why(family: Family) -> str:
    """What a template says to the simplest conversation, which it refuses."""
    with pytest.raises(ServerError) as refused:
        Template(family).needed("one turn")
    reason = str(refused.value.__cause__ or refused.value.report.message)
    found = re.search(r"\((.*)\)\. Leave", refused.value.report.message)
    return (found[1] if found else reason).partition(". ")[0]


def rows() -> dict[str, Row]:
    """For each history the outcomes; where they are not those of all APIs, for each of them."""
    templates = [Template(family) for family in FAMILIES]
    found: dict[str, Row] = {}
    for name in HISTORIES:
        apis: dict[Row, list[str]] = {}
        for path, api in NAMES.items():
            row = tuple(outcome(template, path, name) for template in templates)
            apis.setdefault(row, []).append(api)
        for row, names in apis.items():
            found[name if len(apis) == 1 else f"{name} ({some(names)})"] = row
    return found


def some(names: list[str]) -> str:
    """Some of the APIs, or all but the others."""
    others = [name for name in NAMES.values() if name not in names]
    return ", ".join(names) if len(names) < len(others) else f"not {', '.join(others)}"


def table() -> str:
    """A line for each history that some template needs otherwise, and a column for each kind of template."""
    lines = rows()
    columns: dict[Row, list[str]] = {}
    for family, column in zip(FAMILIES, zip(*lines.values(), strict=True), strict=True):
        columns.setdefault(column, []).append(f"`{family.file}`")
    kinds = sorted(columns, key=lambda column: -len(columns[column]))
    counts = Counter(cell for column in kinds for cell in column)
    letters = {KEPT: ".", REFUSED: "x"}
    for cell, _ in counts.most_common():
        letters.setdefault(cell, chr(ord("a") + len(letters) - 2))
    heads = (string.ascii_uppercase + string.digits)[: len(kinds)]
    told = [f"- {head}: {', '.join(columns[kind])}" for head, kind in zip(heads[1:], kinds[1:], strict=True)]
    cells = {name: "".join(letters[kind[number]] for kind in kinds) for number, name in enumerate(lines)}
    refusing = [
        family
        for family, column in zip(FAMILIES, zip(*lines.values(), strict=True), strict=True)
        if REFUSED in column
    ]
    reasons = "; ".join(f"`{family.file}`: {why(family)}" for family in refusing)
    grid = [f"{row} {name}" for name, row in cells.items() if set(row) != {".", "x"}]
    legend = "; ".join(f"`{letter}` {cell}" for cell, letter in letters.items())
    return "\n".join(
        [
            f"- A: the other {len(columns[kinds[0]])}",
            *told,
            "",
            f"{legend}. {len(lines) - len(grid)} more rows are `{cells['one turn']}`. Refused by {reasons}.",
            "",
            "```text",
            heads,
            *grid,
            "```",
        ]
    )


def with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
