"""The tables of docs/formats.md, made from the formats; `python -m tests.output.formats_table` writes."""

from pathlib import Path

from pippin.output.formats import tool_format, tool_formats
from pippin.output.reasoning_formats import FORMATS, ReasoningFormat
from pippin.output.tool_format import ToolFormat
from tests.output.families import BY_NAME, FAMILIES, Family

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
BEGIN, END = "<!-- table: {} -->", "<!-- end -->"


MOST_NAMED = 1  # templates
BY_HAND = {"functionary": "`v2` and `v2.2` of MeetKai/functionary, by hand"}


def tool_table() -> str:
    rows = []
    for found in sorted(set(map(tool_format, sorted(tool_formats()))), key=lambda form: form.name):
        families = [
            family
            for family in (*FAMILIES, *BY_NAME)
            if family.tool == found.name and family.writes != "nothing"
        ]
        rows.append(row(found, BY_HAND.get(found.name) or verified(families)))
    return "\n".join(rows)


def reasoning_table() -> str:
    rows = []
    for found in sorted(FORMATS.values(), key=lambda each: each.name):
        families = [
            family
            for family in (*FAMILIES, *BY_NAME)
            if family.reasoning == found.name
            and family.tool
            and family.writes != "nothing"
            and family.thoughts
        ]
        rows.append(row(found, verified(families)))
    return "\n".join(rows)


def verified(families: list[Family]) -> str:
    if not families:
        return "no real template"
    names = list(dict.fromkeys(f"`{family.file}`" for family in families))
    more = f", {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def row(found: ToolFormat | ReasoningFormat, verified: str) -> str:
    aliases = ", ".join(f"`{alias}`" for alias in found.aliases)
    signs = "; or ".join(" and ".join(map(code, group)) for group in found.signs)
    detected = f"{signs}, priority {found.priority}" if signs else "its name only"
    known = f"`{found.name}`" + (f" ({aliases})" if aliases else "")
    return f"- {known}: {found.about} Detected by {detected}. Templates: {verified}."


def code(text: str) -> str:
    text = text.replace("\n", "\\n")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def with_tables(page: str) -> str:
    for name, table in (("tools", tool_table()), ("reasoning", reasoning_table())):
        before, _, rest = page.partition(BEGIN.format(name))
        after = rest.partition(END)[2]
        page = f"{before}{BEGIN.format(name)}\n\n{table}\n\n{END}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
