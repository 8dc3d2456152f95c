"""Makes values of TypeScript's interfaces from their declarations: one level of fields, for the names matter most."""

import re
from typing import Any


def sample(declarations: str, interface: str) -> dict[str, Any]:
    """A value with all fields of an interface and of those that it extends in the same file."""
    head = re.search(
        rf"^( *)(?:export )?(?:declare )?(?:interface|class) {interface}\b([^{{]*){{\n(.*?)^\1}}",
        declarations,
        re.MULTILINE | re.DOTALL,
    )
    if head is None:
        raise LookupError(f"{interface} is not declared there any more")
    indent, extended, body = head.groups()
    parents = re.findall(r"\w+", extended.partition("extends")[2])
    fields = re.findall(rf"^{indent} {{4}}['\"]?(\w+)['\"]?\??: (.+?);?$", body, re.MULTILINE)
    known = [parent for parent in parents if re.search(rf"(?:interface|class) {parent}\b", declarations)]
    inherited = {name: value for parent in known for name, value in sample(declarations, parent).items()}
    return inherited | {name: _value(kind) for name, kind in fields}


def _value(kind: str) -> Any:
    first = next(each for each in kind.split(" | ") if each not in ("null", "undefined"))
    if quoted := re.fullmatch(r"['\"](.*)['\"]", first):
        return quoted[1]
    if first.startswith(("Array<", "ReadonlyArray<")) or first.endswith("[]"):
        return []
    return {"string": "x", "number": 1, "boolean": True, "true": True, "false": False}.get(first, {})
