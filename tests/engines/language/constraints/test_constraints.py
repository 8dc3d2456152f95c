"""Whatever a grammar lets through keeps to its schema, and what can't be kept to is refused by name."""

import contextlib
import json
import random
import re
import time
from typing import Any

import jsonschema
import numpy as np
import pytest

from pippin.core.conversation import Tool
from pippin.core.errors import ServerError
from pippin.core.requests import Choice, Grammar, JsonObject, JsonSchema, Regex
from pippin.engines.language.constraints import tokens
from pippin.engines.language.constraints.grammar import CompiledGrammar, GrammarCompiler, forced_by
from pippin.engines.language.constraints.schema import nodes
from pippin.engines.language.text import tokenizer as text_tokens
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.output.formats import tool_format
from tests.engines.language.constraints.schemas import CORPUS
from tests.engines.language.text.small_tokenizer import byte_level


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level()


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


class Walker:
    """Chooses at random among what a mask allows, in a hurry to close what is open."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ends = sorted(tokenizer.eos)
        raws = [tokenizer.raw(token) for token in range(tokenizer.size)]
        self.quotes = np.array([raw[:1] == b'"' for raw in raws])
        self.hasty = np.array([raw in (b"}", b"]", b"@", b".", b":", b"/", b"y", b"z", b"0") for raw in raws])
        self.content = np.array([raw.strip() != b"" for raw in raws])

    def walk(self, grammar: CompiledGrammar, seed: int, patience: int = 25) -> str:
        chance, matcher = random.Random(seed), grammar.matcher()
        row, out = np.zeros(grammar.words, np.int32), b""
        for step in range(1500):
            grammar.fill(matcher, row)
            allowed = np.unpackbits(row.view(np.uint8), bitorder="little").astype(bool)[: self.tokenizer.size]
            assert allowed.any(), f"nothing is allowed after {out!r}"
            ends = allowed[self.ends]
            if ends.any() and (step > patience or chance.random() < 0.3 or ends.sum() == allowed.sum()):
                return out.decode()
            token = self._pick(allowed, chance, hurry=step > patience)
            assert matcher.consume_token(token), (out, token, matcher.get_error())
            out += self.tokenizer.raw(token)
            if matcher.is_stopped():
                return out.decode()
        raise AssertionError(f"the walk came to no end: {out[:300]!r}")

    def _pick(self, allowed: np.ndarray, chance: random.Random, *, hurry: bool) -> int:
        allowed = allowed.copy()
        allowed[self.ends] = False
        for better in (self.quotes, self.hasty) if hurry else (self.content,):
            if (better & allowed).any() and chance.random() < 0.85:
                allowed &= better
                break
        return int(chance.choice(np.flatnonzero(allowed)))


def check(schema: Any, text: str) -> None:
    validator = jsonschema.Draft202012Validator
    # RFC 3339 has a year 0, which Python's dates lack.
    value = json.loads(re.sub(r'"0000-', '"0004-', text))
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(value)


def test_the_corpus_is_large_and_legal():
    assert len(CORPUS) >= 150
    for schema in CORPUS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", CORPUS)
def test_every_masked_walk_validates(name, compiler, tokenizer):
    grammar = compiler.compile(JsonSchema(CORPUS[name]))
    walker = Walker(tokenizer)
    for seed in range(4):
        check(CORPUS[name], walker.walk(grammar, seed))


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("name", CORPUS)
def test_every_masked_walk_over_a_real_vocabulary_validates(name, demo_model):
    tokenizer = Tokenizer.load(demo_model)
    grammar = GrammarCompiler(tokenizer).compile(JsonSchema(CORPUS[name]))
    for seed in range(10):
        check(CORPUS[name], Walker(tokenizer).walk(grammar, seed, patience=seed * 5))


def accepts(grammar: CompiledGrammar, tokenizer: Tokenizer, text: str) -> bool:
    matcher, tokens = grammar.matcher(), tokenizer.encode(text)
    if matcher.validate_tokens(tokens) < len(tokens) or not all(
        matcher.consume_token(token) for token in tokens
    ):
        return False
    row = np.zeros(grammar.words, np.int32)
    if matcher.is_stopped():
        return True
    grammar.fill(matcher, row)
    end = min(tokenizer.eos)
    return bool(row.view(np.uint32)[end // 32] >> (end % 32) & 1)


LANGUAGES = [
    (JsonObject(), ['{"a": [1, null]}', "{}"], ["[1]", '"x"', "{"]),
    (Regex("^ab+c$"), ["abc", "abbbc"], ["ac", "xabc", "abcd"]),
    (Regex("a/b\\/c|\\d\n"), ["a/b/c", "7\n"], ["a"]),
    (Choice(("yes", 'no "q"\n', "日本", "a\\b")), ["yes", 'no "q"\n', "日本", "a\\b"], ["y", "yesyes", "no"]),
    (Grammar("lark", 'start: "a" b+\nb: "b" | "c"'), ["ab", "abcb"], ["a", "ba"]),
    (Grammar("gbnf", 'root ::= "x" digit*\ndigit ::= [0-9]'), ["x", "x42"], ["4", ""]),
    (JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}),
     ['{"a": 1}', '{"a":1}', '{\n  "a": 1\n}', "{}"], ['{"a":    1}', '{"b": 1}', '{"a": "x"}']),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "inside", "outside"), LANGUAGES)
def test_a_grammar_takes_its_language_and_no_more(wanted, inside, outside, compiler, tokenizer):
    grammar = compiler.compile(wanted)
    assert [text for text in inside if not accepts(grammar, tokenizer, text)] == []
    assert [text for text in outside if accepts(grammar, tokenizer, text)] == []


@pytest.mark.parametrize("text", ["<think>", "a<|im_end|>b", "</tool_call>"])
def test_a_constant_that_spells_a_special_token_is_written_as_text(text, compiler, tokenizer):
    grammar = compiler.compile(JsonSchema({"const": text}))
    assert json.loads(Walker(tokenizer).walk(grammar, 0)) == text


def test_free_text_holds_no_special_token(compiler, tokenizer):
    assert compiler.special_id("<tool_call>") is not None
    matcher = compiler.compile(Grammar("lark", "start: /(.|\n)*/ <tool_call> /[0-9]/")).matcher()
    call = tokenizer.single("<tool_call>")
    assert matcher.consume_token(call)
    assert matcher.validate_tokens([call]) == 0


def test_an_answer_or_a_call_may_come(compiler, tokenizer):
    grammar = compiler.compile(JsonSchema({"const": 7}), 'start: "<call>" /[a-z]+/ "</call>"')
    assert accepts(grammar, tokenizer, "7")
    assert accepts(grammar, tokenizer, "<call>go</call>")
    assert not accepts(grammar, tokenizer, "8")


REFUSALS = [
    ({"properties": {"a": {"not": {"type": "string"}}}}, "not", "properties.a.not"),
    ({"items": {"type": "string", "format": "banana"}}, "format", "items.format"),
    ({"$defs": {"q": {"uniqueItems": True}}, "$ref": "#/$defs/q"}, "uniqueItems", "$defs.q.uniqueItems"),
    ({"properties": {"o": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}, "oneOf", "properties.o.oneOf"),
    ({"properties": {"p": {"type": "string", "pattern": "(a"}}}, "pattern", "properties.p.pattern"),
    ({"properties": {"p": {"type": "string", "pattern": "(?=a)b"}}}, "pattern", "properties.p.pattern"),
    ({"properties": {"t": {"type": ["string", "banana"]}}}, "type", "properties.t.type"),
    ({"properties": {"r": {"$ref": "#/$defs/none"}}}, "$ref", "properties.r.$ref"),
    ({"items": {"$ref": "http://example.com/schema"}}, "$ref", "items.$ref"),
    ({"type": "object", "propertyNames": {"format": "email"}}, "propertyNames", "propertyNames"),
    ({"prefixItems": [{}, {"if": {}, "then": {}}]}, "if", "prefixItems[1].if"),
    ({"allOf": [{"dependentRequired": {"a": ["b"]}}]}, "dependentRequired", "allOf[0].dependentRequired"),
    ({"type": "object", "properties": {"n": {"type": "integer", "minimum": 5, "maximum": 2}}, "required": ["n"]},
     "minimum", "properties.n"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "keyword", "path"), REFUSALS)
def test_what_cannot_be_honoured_is_refused_with_keyword_and_path(schema, keyword, path, compiler):
    with pytest.raises(ServerError) as refused:
        compiler.compile(JsonSchema(schema), param="response_format.json_schema.schema")
    report = refused.value.report
    assert report.status == 400
    assert keyword in report.message
    assert report.param == f"response_format.json_schema.schema.{path}"


def test_a_schema_that_is_not_strict_is_kept_to_as_far_as_it_can_be(compiler, tokenizer):
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    grammar = compiler.compile(JsonSchema(schema, strict=False))
    assert accepts(grammar, tokenizer, "[1, 1]")
    assert not accepts(grammar, tokenizer, '["a"]')


@pytest.mark.parametrize(
    "wanted",
    [Regex("(a"), Regex("(?=x)"), Grammar("lark", "start: nothing"), Grammar("lark", "{{{"), Choice(()),
     Grammar("gbnf", "root := [")],
)  # fmt: skip
def test_a_broken_grammar_is_refused(wanted, compiler):
    with pytest.raises(ServerError) as refused:
        compiler.compile(wanted)
    assert refused.value.report.status == 400


@pytest.mark.parametrize(
    "wanted",
    [Regex("a[^\\s\\S]"), Grammar("lark", "start: start"), JsonSchema({"$ref": "#"}, strict=False),
     JsonSchema({"allOf": [{"$ref": "#"}]}, strict=True)],
)  # fmt: skip
def test_a_form_that_no_answer_has_is_refused_before_it_is_queued(wanted, compiler):
    with pytest.raises(ServerError, match="nothing satisfies it") as refused:
        compiler.compile(wanted, param="guided_grammar")
    assert (refused.value.report.status, refused.value.report.param) == (400, "guided_grammar")


def test_a_form_that_begins_with_a_long_text_is_refused(compiler):
    with pytest.raises(ServerError, match="more than 65536 bytes") as refused:
        compiler.compile(Regex("(a{1000}){70}b"), param="guided_regex")
    assert (refused.value.report.status, refused.value.report.param) == (400, "guided_regex")


def test_a_choice_may_have_thousands_of_options(compiler, tokenizer):
    options = [f"option {number}" for number in range(2_500)]
    matcher = compiler.compile(Choice(tuple(options))).matcher()
    assert matcher.consume_tokens(tokenizer.encode(options[-1])), matcher.get_error()
    assert matcher.is_accepting()


def test_what_grammars_need_can_be_made_ahead(monkeypatch):
    compiler = GrammarCompiler(byte_level())
    compiler.open_tokens()
    monkeypatch.delattr(tokens, "open_tokens")
    assert forced_by(compiler.compile(JsonSchema({"const": "text"})).matcher())


def test_the_first_grammar_copies_no_tokenizer_unless_a_text_spells_a_special_token(monkeypatch):
    copied: list[Any] = []
    monkeypatch.setattr(text_tokens, "with_renamed_tokens", lambda *given: copied.append(given) or given[0])
    compiler = GrammarCompiler(byte_level())
    for text, copies in (("plain", 0), ("<|im_end|>", 1)):
        assert forced_by(compiler.compile(JsonSchema({"const": text})).matcher())
        assert len(copied) == copies


def test_grammar_bombs_are_refused_or_quick(compiler, tokenizer):
    deep: Any = {"type": "string"}
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    bombs = [
        Regex("(a+)+$"),
        Regex("(((a{1,1000}){1,1000}){1,1000}){1,1000}"),
        JsonSchema(deep),
        JsonSchema({"enum": ["x" * 100 + str(n) for n in range(20_000)]}),
        JsonSchema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(60_000)}}),
        Grammar("lark", 'start: "a"' * 60_000),
    ]
    for bomb in bombs:
        started = time.monotonic()
        with contextlib.suppress(ServerError):
            grammar = compiler.compile(bomb)
            grammar.fill(grammar.matcher(), np.zeros(grammar.words, np.int32))
        assert time.monotonic() - started < 5


def test_grammars_are_kept_by_bytes_and_the_oldest_goes(tokenizer):
    compiler = GrammarCompiler(tokenizer, cache_bytes=300_000)
    first = compiler.compile(Regex("first"))
    assert compiler.compile(Regex("first")) is first
    for number in range(10):
        compiler.compile(Regex(f"other{number}"))
    assert compiler.compile(Regex("first")) is not first


def test_rolling_back_forgets_tokens(compiler, tokenizer):
    grammar = compiler.compile(Regex("abcabc"))
    matcher = grammar.matcher()
    row, before = np.zeros((2, -(-tokenizer.size // 32)), np.int32)
    grammar.fill(matcher, before)
    tokens = tokenizer.encode("abc")
    for token in tokens:
        assert matcher.consume_token(token)
    matcher.rollback(len(tokens))
    grammar.fill(matcher, row)
    assert (row == before).all()


def test_sequences_of_one_grammar_do_not_see_each_other(compiler, tokenizer):
    grammar = compiler.compile(Choice(("aa", "bb")))
    one, other = grammar.matcher(), grammar.matcher()
    assert one.consume_token(tokenizer.encode("a")[0])
    assert other.validate_tokens(tokenizer.encode("b")[:1]) == 1
    assert one.validate_tokens(tokenizer.encode("b")[:1]) == 0


def test_the_walk_of_a_schema_gives_every_part_its_path():
    schema = {"properties": {"a": {"anyOf": [{"items": {"not": {}}}]}}, "$defs": {"d": {"prefixItems": [{}]}}}
    assert [path for path, _ in nodes(schema)] == [
        "",
        ".properties.a",
        ".properties.a.anyOf[0]",
        ".properties.a.anyOf[0].items",
        ".properties.a.anyOf[0].items.not",
        ".$defs.d",
        ".$defs.d.prefixItems[0]",
    ]


TAGS = {
    "type": "object",
    "properties": {"t": {"type": "array", "uniqueItems": True}, "p": {"pattern": "^(?=a)"}},
}


def test_what_cannot_be_enforced_is_left_out_of_a_tool_that_is_not_strict(compiler):
    tool = compiler.enforceable(Tool("f", None, TAGS))
    expected = {"type": "object", "properties": {"t": {"type": "array"}, "p": {}}, "required": []}
    assert tool.parameters == expected
    sound = Tool("g", None, {"type": "object", "properties": {"a": {"type": "integer"}}})
    assert compiler.enforceable(sound) == sound


def test_a_strict_tool_that_cannot_be_enforced_is_named_with_the_place(compiler):
    with pytest.raises(ServerError) as refused:
        compiler.enforceable(Tool("f", None, TAGS, strict=True))
    assert "'f'" in refused.value.report.message
    assert "'properties.t.uniqueItems'" in refused.value.report.message


def test_a_pattern_that_cannot_be_compiled_refuses_only_a_strict_schema(compiler):
    schema = {"type": "object", "properties": {"p": {"type": "string", "pattern": "^(?=a).*$"}}}
    first = compiler.compile(JsonSchema(schema, strict=False))
    assert compiler.compile(JsonSchema(schema, strict=False)) is first
    with pytest.raises(ServerError, match=r"properties\.p\.pattern"):
        compiler.compile(JsonSchema(schema, strict=True))


BROKEN = [
    {"pattern": "a("}, {"type": "date"}, {"type": 5}, {"type": []}, {"$ref": "#/$defs/nope"}, {"$ref": 5}, {"enum": []},
    {"type": "string", "minLength": 3, "maxLength": 2}, "string", None,
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_what_nobody_could_read_is_left_out_of_a_schema_that_is_not_strict(compiler, tokenizer, broken):
    schema = {"type": "object", "properties": {"p": broken, "n": {"type": "integer"}}}
    grammar = compiler.compile(JsonSchema(schema, strict=False))
    assert accepts(grammar, tokenizer, '{"n": 1}')
    tool = compiler.enforceable(Tool("f", None, schema))
    for name in ("qwen3_coder", "pythonic", "kimi_k3", "json_tools"):
        source = tool_format(name).grammar(
            (tool,), required=True, parallel=False, special=compiler.special_id
        )
        assert compiler.compile(None, source)
    with pytest.raises(ServerError, match="'f'"):
        compiler.enforceable(Tool("f", None, schema, strict=True))
