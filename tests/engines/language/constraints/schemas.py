"""Over 150 JSON schemas of many kinds, made from small ones: every one must be kept to by constrained decoding."""

from typing import Any

Schema = dict[str, Any]


def closed(**properties: Any) -> Schema:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRING, INTEGER, NUMBER, BOOLEAN, NULL = (
    {"type": t} for t in ("string", "integer", "number", "boolean", "null")
)

SCALARS: dict[str, Schema] = {
    "string": STRING,
    "integer": INTEGER,
    "number": NUMBER,
    "boolean": BOOLEAN,
    "null": NULL,
    "string or null": {"type": ["string", "null"]},
    "integer or string": {"type": ["integer", "string"]},
    "any scalar": {"type": ["string", "integer", "number", "boolean", "null"]},
    "short string": {"type": "string", "maxLength": 5},
    "long enough string": {"type": "string", "minLength": 3, "maxLength": 12},
    "exact length": {"type": "string", "minLength": 4, "maxLength": 4},
    "empty string": {"type": "string", "maxLength": 0},
    "at least zero": {"type": "integer", "minimum": 0},
    "at most ten": {"type": "integer", "maximum": 10},
    "from one to five": {"type": "integer", "minimum": 1, "maximum": 5},
    "from minus seven": {"type": "integer", "minimum": -7, "maximum": 120},
    "strictly between": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1000},
    "number in a range": {"type": "number", "minimum": 0, "maximum": 1},
    "number strictly in a range": {"type": "number", "exclusiveMinimum": -2.5, "exclusiveMaximum": 2.5},
    "number from below": {"type": "number", "minimum": 1.25},
    "multiple of five": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000},
    "enum of strings": {"enum": ["red", "green", "blue"]},
    "enum of one": {"enum": ["only"]},
    "enum of mixed": {"enum": ["a", 1, 2.5, None, True, {"k": [1]}, [1, 2]]},
    "typed enum": {"type": "string", "enum": ["north", "south", "east", "west"]},
    "enum with quotes": {"enum": ['say "hi"', "back\\slash", "line\nend", "tab\t"]},
    "enum of unicode": {"enum": ["é", "日本語", "🙂", "ß"]},
    "const string": {"const": "fixed"},
    "const number": {"const": 42},
    "const object": {"const": {"a": [1, {"b": None}]}},
    "const null": {"const": None},
    "const empty": {"const": ""},
}

PATTERNS: dict[str, Schema] = {
    name: {"type": "string", "pattern": pattern}
    for name, pattern in {
        "digits": r"^[0-9]{3}$",
        "phone": r"^\+?[0-9]{2,4}-[0-9]{3,8}$",
        "identifier": r"^[a-z_][a-z0-9_]{0,10}$",
        "alternatives": r"^(cat|dog|bird)s?$",
        "hexadecimal": r"^0x[0-9A-F]{1,8}$",
        "version": r"^[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2}$",
        "not anchored": r"[0-9]",
        "anchored at the start": r"^ab",
        "anchored at the end": r"yz$",
        "unicode class": r"^[α-ω]{2,4}$",
        "escapes": r"^\d{2}\s\w{2}$",
        "a quote inside": r'^"[a-z]{2}"$',
        "a slash inside": r"^a/b/[0-9]$",
        "optional groups": r"^(ab)?(cd)?e$",
    }.items()
}

FORMATS: dict[str, Schema] = {
    name: {"type": "string", "format": name}
    for name in ("date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "uri", "hostname", "duration")
}

ARRAYS: dict[str, Schema] = {
    "any items": {"type": "array"},
    "of integers": {"type": "array", "items": INTEGER},
    "at most three": {"type": "array", "items": STRING, "maxItems": 3},
    "two to four": {"type": "array", "items": BOOLEAN, "minItems": 2, "maxItems": 4},
    "exactly two": {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2},
    "empty": {"type": "array", "maxItems": 0},
    "pair": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    "prefix and rest": {"type": "array", "prefixItems": [BOOLEAN], "items": INTEGER, "maxItems": 4},
    "loose prefix": {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 3},
    "of arrays": {
        "type": "array",
        "items": {"type": "array", "items": INTEGER, "maxItems": 2},
        "maxItems": 3,
    },
    "of objects": {"type": "array", "items": closed(id=INTEGER), "minItems": 1, "maxItems": 2},
    "of enums": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 5},
    "of unions": {"type": "array", "items": {"anyOf": [STRING, closed(n=INTEGER)]}, "maxItems": 3},
    "of nothing known": {"type": "array", "items": True, "maxItems": 2},
}

OBJECTS: dict[str, Schema] = {
    "any object": {"type": "object"},
    "one required": closed(name=STRING),
    "two required": closed(name=STRING, age=INTEGER),
    "one optional": {**closed(a=STRING, b=INTEGER), "required": ["a"]},
    "all optional": {**closed(a=STRING, b=INTEGER, c=BOOLEAN), "required": []},
    "open": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
    "map of integers": {"type": "object", "additionalProperties": INTEGER},
    "map and known": {
        "type": "object",
        "properties": {"id": INTEGER},
        "required": ["id"],
        "additionalProperties": STRING,
    },
    "required but not described": {"type": "object", "required": ["x"], "additionalProperties": NUMBER},
    "nested": closed(outer=closed(inner=closed(leaf=STRING))),
    "nested optional": {**closed(o=closed(x=INTEGER)), "required": []},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^n_": INTEGER},
        "additionalProperties": False,
    },
    "two patterns": {
        "type": "object",
        "patternProperties": {"^a": STRING, "^b": BOOLEAN},
        "additionalProperties": False,
    },
    "at least two properties": {"type": "object", "minProperties": 2, "additionalProperties": INTEGER},
    "at most one property": {"type": "object", "maxProperties": 1, "additionalProperties": INTEGER},
    "unicode keys": closed(**{"naïve": STRING, "日本": INTEGER, "🙂": BOOLEAN}),
    "keys with quotes": closed(**{'a"b': STRING, "c\\d": INTEGER, "e\nf": BOOLEAN}),
    "keys with blanks": closed(**{"first name": STRING, "": NULL}),
    "prefix keys": closed(a=INTEGER, ab=INTEGER, abc=INTEGER),
    "many properties": closed(**{f"field_{n}": BOOLEAN for n in range(30)}),
    "described": {
        **closed(a={**STRING, "description": "words", "title": "A", "default": "x", "examples": ["y"]}),
        "title": "T",
    },
    "schema dialect": {**closed(a=INTEGER), "$schema": "https://json-schema.org/draft/2020-12/schema"},
    "deep": closed(a=closed(b=closed(c=closed(d=closed(e=closed(f=BOOLEAN)))))),
    "object without a type": {"properties": {"a": INTEGER}, "required": ["a"], "type": "object"},
    "property that may be anything": closed(a=True),
}

COMBINED: dict[str, Schema] = {
    "any of scalars": {"anyOf": [STRING, INTEGER]},
    "any of objects": {
        "anyOf": [closed(kind={"const": "a"}, x=INTEGER), closed(kind={"const": "b"}, y=STRING)]
    },
    "any of with null": closed(v={"anyOf": [STRING, NULL]}),
    "nested any of": {"anyOf": [{"anyOf": [INTEGER, BOOLEAN]}, NULL]},
    "one of distinct types": {"oneOf": [STRING, INTEGER]},
    "one of by a tag": {"oneOf": [closed(t={"const": "x"}, n=INTEGER), closed(t={"const": "y"}, s=STRING)]},
    "all of one": {"allOf": [closed(a=INTEGER)]},
    "all of ranges": {"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 9}]},
    "all of objects": {
        "allOf": [
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
            {"type": "object", "properties": {"b": STRING}, "required": ["b"]},
        ]
    },
    "all of with any of": {"allOf": [{"anyOf": [INTEGER, STRING]}, {"type": "string"}]},
    "properties beside any of": {
        "type": "object",
        "properties": {"id": INTEGER},
        "required": ["id"],
        "anyOf": [{"properties": {"x": BOOLEAN}}, {"properties": {"x": NULL}}],
    },
}

LINKED: Schema = {"value": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/node"}, NULL]}}
REFERENCES: dict[str, Schema] = {
    "reference": {"$ref": "#/$defs/p", "$defs": {"p": closed(x=NUMBER, y=NUMBER)}},
    "two references": {
        **closed(a={"$ref": "#/$defs/s"}, b={"$ref": "#/$defs/s"}),
        "$defs": {"s": {"enum": ["u", "v"]}},
    },
    "old definitions": {**closed(a={"$ref": "#/definitions/s"}), "definitions": {"s": BOOLEAN}},
    "reference to a reference": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": INTEGER}},
    "linked list": {"$ref": "#/$defs/node", "$defs": {"node": closed(**LINKED)}},
    "tree": {
        "$ref": "#/$defs/t",
        "$defs": {
            "t": closed(v=INTEGER, kids={"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2})
        },
    },
    "reference to the root": {
        "type": "object",
        "properties": {"child": {"$ref": "#"}, "n": INTEGER},
        "required": ["n"],
        "additionalProperties": False,
    },
    "mutual": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {**closed(b={"$ref": "#/$defs/b"}), "required": []},
            "b": {**closed(a={"$ref": "#/$defs/a"}), "required": []},
        },
    },
    "expression": {
        "$ref": "#/$defs/e",
        "$defs": {
            "e": {
                "anyOf": [INTEGER, closed(op={"enum": ["+", "*"]}, left={"$ref": "#/$defs/e"}, right=INTEGER)]
            },
        },
    },
}

REAL: dict[str, Schema] = {
    "person": closed(
        name=STRING, age={"type": "integer", "minimum": 0, "maximum": 150}, email=FORMATS["email"]
    ),
    "recipe": closed(
        title={"type": "string", "maxLength": 40},
        steps={"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 1, "maxItems": 3},
    ),
    "event": closed(
        date=FORMATS["date"],
        attendees={"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 2},
    ),
    "classification": closed(
        label={"enum": ["positive", "negative", "neutral"]}, confidence=SCALARS["number in a range"]
    ),
    "tool call": closed(
        name={"enum": ["search", "open"]}, arguments=closed(query={"type": "string", "maxLength": 20})
    ),
    "invoice": closed(
        number=PATTERNS["digits"],
        lines={
            "type": "array",
            "items": closed(sku=PATTERNS["hexadecimal"], count=INTEGER),
            "minItems": 1,
            "maxItems": 2,
        },
        paid=BOOLEAN,
    ),
    "steps and answer": closed(
        steps={"type": "array", "items": closed(why={"type": "string", "maxLength": 15}), "maxItems": 2},
        final={"type": "string", "maxLength": 10},
    ),
    "coordinates": closed(lat={"type": "number", "minimum": -90, "maximum": 90}, lon={"type": "number"}),
}


def _corpus() -> dict[str, Schema]:
    """Each scalar, pattern and format alone and as a property; a sample of them in arrays and maps."""
    groups = (("scalar", SCALARS), ("pattern", PATTERNS), ("format", FORMATS))
    small = {f"{kind}: {name}": schema for kind, held in groups for name, schema in held.items()}
    found = dict(small)
    found |= {f"property of {name}": closed(it=schema, also=BOOLEAN) for name, schema in small.items()}
    groups = (
        ("array", ARRAYS),
        ("object", OBJECTS),
        ("combined", COMBINED),
        ("reference", REFERENCES),
        ("real", REAL),
    )
    for kind, held in groups:
        found |= {f"{kind}: {name}": schema for name, schema in held.items()}
    return found


CORPUS: dict[str, Schema] = _corpus()
