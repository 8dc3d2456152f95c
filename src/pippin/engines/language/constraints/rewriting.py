"""Writes keywords of JSON schemas that llguidance lacks in keywords that it has, where both say exactly the same.

What can't be written so stays, and is refused or left out by the compiler.
"""

import copy
from itertools import permutations
from typing import Any, Final

from pippin.engines.language.constraints.schema import TooLarge, nodes
from pippin.output.schemas import resolve

MOST_UNIQUE: Final = 4  # values of an enumeration whose orders are all written down
MOST_DEPENDENCIES: Final = 8  # of one object: each doubles the combinations that the compiler looks at

_OF_TYPE: Final = {
    **dict.fromkeys(("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"), "array"),
    **dict.fromkeys(
        ("propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
        "object",
    ),
}
_KEYWORDS: Final = {*_OF_TYPE, "if", "then", "else", "not"}
_APPLIED: Final = ("anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "$dynamicRef")
"""Keywords by which a schema may say more of a value's properties than its own `properties` do."""
_TELLING: Final = {"type", "description", "title"}
_ANYTHING: Final[tuple[Any, ...]] = (True, {})

Schema = dict[str, Any]


def rewritten(schema: Any) -> Any:
    """The schema in keywords that llguidance has, as far as that is exact; the same object if it has them already."""
    try:
        if not any(_KEYWORDS & node.keys() for _, node in nodes(schema)):
            return schema
        found = copy.deepcopy(schema)
        for _, node in reversed(list(nodes(found))):
            for write in (_drop_idle, _name_properties, _write_dependencies, _write_condition, _write_unique):
                write(node)
            _close(node, found)
    except (TooLarge, TypeError, AttributeError):
        return schema  # it is too large or malformed, which the compiler tells
    return found


def _drop_idle(node: Schema) -> None:
    """Drop keywords that change nothing."""
    kind = node.get("type")
    for keyword, about in _OF_TYPE.items():
        if isinstance(kind, str) and kind != about:
            node.pop(keyword, None)
    if not node.get("uniqueItems", True) or node.get("maxItems", 2) in (0, 1):
        node.pop("uniqueItems", None)
    if node.get("minContains", 1) == 0 and "maxContains" not in node:
        node.pop("contains", None)
    idle = () if "contains" in node else ("minContains", "maxContains")
    if "if" not in node or not {"then", "else"} & node.keys():
        idle = (*idle, "if", "then", "else")
    for keyword in idle:
        node.pop(keyword, None)
    for keyword in ("unevaluatedProperties", "unevaluatedItems", "propertyNames"):
        if node.get(keyword, False) in _ANYTHING:
            del node[keyword]
    names = node.get("propertyNames")
    if isinstance(names, dict) and names.keys() <= _TELLING and names.get("type") == "string":
        del node["propertyNames"]
    if node.get("not") in (False, {"not": {}}):
        del node["not"]


def _close(node: Schema, root: Schema) -> None:
    """What is not evaluated is what is additional, where all that is evaluated can be named."""
    if "unevaluatedItems" in node and not {"allOf", "$ref", "contains", *_APPLIED} & node.keys():
        node.setdefault("items", node.pop("unevaluatedItems"))
    if "unevaluatedProperties" not in node:
        return
    names = {} if "additionalProperties" in node else _named(node, root, [])
    if names is not None:
        node.setdefault("additionalProperties", node.pop("unevaluatedProperties"))
        if names:
            node["properties"] = {**names, **node.get("properties", {})}


def _named(node: Any, root: Schema, seen: list[Any]) -> dict[str, Any] | None:
    """All properties that a schema names, itself or through `allOf` and `$ref`; None if it may evaluate others."""
    if not isinstance(node, dict) or any(node is each for each in seen) or set(_APPLIED) & node.keys():
        return None
    if seen and {"additionalProperties", "patternProperties"} & node.keys():
        return None
    inner = [*node.get("allOf", ()), *([resolve(node["$ref"], root)] if "$ref" in node else ())]
    names: dict[str, Any] = dict.fromkeys(node.get("properties", ()), True)
    for each in inner:
        found = _named(each, root, [*seen, node])
        if found is None:
            return None
        names |= found
    return names


def _name_properties(node: Schema) -> None:
    """`propertyNames` as the properties that there may be, or as a pattern of their names."""
    names = node.get("propertyNames")
    if not isinstance(names, dict) or "patternProperties" in node or names.get("type", "string") != "string":
        return
    others = node.get("additionalProperties", True)
    own = node.get("properties") or {}
    told = names.keys() - _TELLING
    if told in ({"enum"}, {"const"}):
        allowed = names.get("enum", [names.get("const")])
        node["properties"] = {name: own.get(name, others) for name in allowed if isinstance(name, str)}
    elif own:
        return
    elif told == {"pattern"}:
        node["patternProperties"] = {names["pattern"]: others}
    elif told <= {"minLength", "maxLength"}:
        least, most = names.get("minLength", 0), names.get("maxLength", "")
        node["patternProperties"] = {f"^(?s:.{{{least},{most}}})$": others}
    else:
        return
    node["additionalProperties"] = False
    del node["propertyNames"]


def _write_dependencies(node: Schema) -> None:
    """Either a property is missing, or what depends on it holds."""
    if node.get("type") != "object":
        return
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        if len(node.get(keyword, ())) > MOST_DEPENDENCIES:
            continue
        for name, needs in node.pop(keyword, {}).items():
            listed = isinstance(needs, list)
            wanted = {"required": [name, *needs]} if listed else {"required": [name], "allOf": [needs]}
            _either(node, [_without(name), wanted])


def _write_condition(node: Schema) -> None:
    """`if` about properties that have few values: either they have these values and `then` holds, or one of them has
    another, or is missing, and `else` holds."""
    if not isinstance(node.get("if"), dict) or node.get("type") != "object":
        return
    condition = node["if"]
    tested = condition.get("properties")
    if not isinstance(tested, dict) or condition.keys() - {"properties", "required", "type"}:
        return
    if condition.get("type", "object") != "object":
        return
    needed = set(condition.get("required", ()))
    others: list[Schema] = [_without(name) for name in sorted(needed)]
    for name, test in tested.items():
        values, chosen = _values(node.get("properties", {}).get(name)), _values(test)
        if values is None or chosen is None or test.keys() - {"const", "enum"}:
            return
        left = [value for value in values if value not in chosen]
        others += [{"properties": {name: {"enum": left}}, "required": [name]}] if left else []
    then, otherwise = node.pop("then", True), node.pop("else", True)
    del node["if"]
    _either(node, [{"allOf": [condition, then]}, *({"allOf": [other, otherwise]} for other in others)])


def _write_unique(node: Schema) -> None:
    """Lists of a few values: all that have none of them twice."""
    values = _values(node.get("items"))
    if "uniqueItems" not in node or node.get("type") != "array" or "prefixItems" in node:
        return
    if values is None or len(values) > MOST_UNIQUE:
        return
    sizes = range(node.get("minItems", 0), min(node.get("maxItems", len(values)), len(values)) + 1)
    if orders := [order for size in sizes for order in permutations(values, size)]:
        del node["uniqueItems"]
        listed = ([{"const": value} for value in order] for order in orders)
        sized = ({"minItems": len(items), "maxItems": len(items), "prefixItems": items} for items in listed)
        _either(node, [{**lists, "items": False} for lists in sized])


def _values(schema: Any) -> list[Any] | None:
    """The texts, truths and nulls that a schema lists, each once; None if it admits others."""
    if not isinstance(schema, dict):
        return None
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is None and schema.get("type") == "boolean":
        values = [False, True]
    if not isinstance(values, list) or not all(
        value is None or isinstance(value, str | bool) for value in values
    ):
        return None
    return list(dict.fromkeys(values))


def _without(name: str) -> Schema:
    return {"properties": {name: False}}


def _either(node: Schema, options: list[Schema]) -> None:
    node["allOf"] = [*node.get("allOf", ()), {"anyOf": options}]
