"""When text is a call: only if it is a complete call of an offered tool, in every format, wherever a stream is cut."""

import json
import time
from typing import Any

import pytest

from pippin.core.completion import collect
from pippin.core.conversation import Tool
from pippin.output.formats import tool_format, tool_formats
from pippin.output.notations.arguments import object_text
from pippin.output.reader import Formats, Markup, OutputReader, ToolUse
from tests.output.reading import fold, read, reader_of
from tests.output.wire import SAMPLES, TOOLS, Sample

WRITE = Tool(
    name="write",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
)
F = Tool(
    name="f", parameters={"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
)
G = Tool(name="g", parameters={"type": "object", "properties": {"b": {"type": "integer"}}})
OFFERED = (WRITE, F, G)


def parts(format: str, text: str, *, truncated: bool = False) -> tuple[tuple[str, ...], ...]:
    """The parts, which must not depend on how the stream is cut."""
    whole = fold(read(reader_of(format, tools=OFFERED), [text], truncated=truncated))
    assert fold(read(reader_of(format, tools=OFFERED), list(text), truncated=truncated)) == whole
    return whole


def calls(format: str, text: str) -> list[tuple[str, Any]]:
    found = parts(format, text)
    assert all(part[0] == "tool_call" for part in found), found
    return [(part[1], json.loads(part[2])) for part in found]


# Values that contain the format's own tags

QWEN = (
    "<tool_call>\n<function=write>\n<parameter=path>\np.md\n</parameter>\n"
    "<parameter=content>\n{}\n</parameter>\n</function>\n</tool_call>"
)
GLM = (
    "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>p.md</arg_value>\n"
    "<arg_key>content</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
)
MINIMAX = (
    '<minimax:tool_call>\n<invoke name="write">\n<parameter name="path">p.md</parameter>\n'
    '<parameter name="content">{}</parameter>\n</invoke>\n</minimax:tool_call>'
)
DSML = (
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="write">\n'
    '<｜DSML｜parameter name="path" string="true">p.md</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="content" string="true">{}</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)
SEED = (
    "<seed:tool_call><function=write><parameter=path>p.md</parameter>"
    "<parameter=content>{}</parameter></function></seed:tool_call>"
)
MINICPM = '<function name="write"><param name="path">p.md</param><param name="content">{}</param></function>'
LAYOUTS = {
    "qwen3_coder": QWEN,
    "glm47": GLM,
    "minimax_m2": MINIMAX,
    "deepseek_v32": DSML,
    "seed_oss": SEED,
    "minicpm5": MINICPM,
}
ENDS = {
    "qwen3_coder": "</parameter>",
    "glm47": "</arg_value>",
    "minimax_m2": "</parameter>",
    "deepseek_v32": "</｜DSML｜parameter>",
    "seed_oss": "</parameter>",
    "minicpm5": "</param>",
}  # fmt: skip


@pytest.mark.parametrize("format", LAYOUTS)
def test_an_end_tag_inside_a_value_belongs_to_the_value(format: str) -> None:
    content = f"Use {ENDS[format]} to close, twice {ENDS[format]} or so."
    expected = [("write", {"path": "p.md", "content": content})]
    assert calls(format, LAYOUTS[format].replace("{}", content)) == expected


@pytest.mark.parametrize("format", ["qwen3_coder", "minimax_m2", "seed_oss"])
def test_elements_inside_a_value_invent_no_argument(format: str) -> None:
    content = '<Pattern>\n<parameter name="a">1</parameter>\n<parameter name="b">2</parameter>\n</Pattern>'
    expected = [("write", {"path": "p.md", "content": content})]
    assert calls(format, LAYOUTS[format].replace("{}", content)) == expected


@pytest.mark.parametrize("end", ["</function>", "</tool_call>", "<tool_call>", "<function=f>"])
def test_an_end_of_a_call_inside_a_value_belongs_to_the_value(end: str) -> None:
    content = f"A {end} is markup"
    assert calls("qwen3_coder", QWEN.replace("{}", content)) == [
        ("write", {"path": "p.md", "content": content})
    ]


def second(format: str) -> str:
    return LAYOUTS[format].replace("{}", "second")


@pytest.mark.parametrize("around", ["{}", "# Calls\n\n{}\n\nand\n\n{}\n\nSo.", "```xml\n{}\n```"])
@pytest.mark.parametrize("format", LAYOUTS)
def test_whole_calls_inside_a_value_belong_to_the_value(format: str, around: str) -> None:
    content = around.replace("{}", LAYOUTS[format].replace("{}", "inner"))
    expected = [("write", {"path": "p.md", "content": content})]
    assert calls(format, LAYOUTS[format].replace("{}", content)) == expected
    further = ("write", {"path": "p.md", "content": "second"})
    assert calls(format, f"{LAYOUTS[format].replace('{}', content)}\n{second(format)}") == [
        *expected,
        further,
    ]


@pytest.mark.parametrize("content", ["Say <function=f>.", "{end}\n{open}", "a {open} b"])
@pytest.mark.parametrize("format", ["qwen3_coder", "minimax_m2", "seed_oss"])
def test_an_element_that_was_given_before_belongs_to_the_value(format: str, content: str) -> None:
    opened = '<parameter name="path">' if format == "minimax_m2" else "<parameter=path>"
    content = content.format(end=ENDS[format], open=opened)
    found = calls(format, f"{LAYOUTS[format].replace('{}', content)}\n{second(format)}")
    assert [arguments["content"] for _, arguments in found] == [content, "second"]


def test_a_call_that_a_limit_cut_inside_a_call_in_its_value_is_not_sent() -> None:
    whole = LAYOUTS["qwen3_coder"].replace("{}", LAYOUTS["qwen3_coder"].replace("{}", "inner"))
    for end in range(len(whole) - len("</function>\n</tool_call>")):
        assert parts("qwen3_coder", whole[:end], truncated=True) == ()


# Tags that were left out


def test_an_element_on_a_line_of_its_own_ends_the_one_before_it() -> None:
    text = "<function=write>\n<parameter=path>\na\n<parameter=content>\nb\n</parameter>\n</function>"
    assert calls("qwen3_coder", text) == [("write", {"path": "a", "content": "b"})]


def test_a_value_without_its_opening_tag_is_read() -> None:
    text = "<tool_call>write<arg_key>path</arg_key>x</arg_value></tool_call>"
    assert calls("glm47", text) == [("write", {"path": "x"})]


# Tools that nobody offered


LIST = '[{"name": "f", "arguments": {}}, {"name": "nope", "arguments": {}}, {"name": "f", "arguments": {}}]'


@pytest.mark.parametrize(
    ("format", "text", "between"),
    [
        ("xlam", LIST, "nope"),
        ("mistral", f"[TOOL_CALLS]{LIST}", "nope"),
        ("granite", f"<|tool_call|>{LIST}", "nope"),
        ("pythonic", "<|tool_call_start|>[f(), nope(a=1), f()]<|tool_call_end|>", "nope(a=1)"),
        ("llama4_pythonic", "[f(), nope(a=1), f()]", "nope(a=1)"),
        ("gemma4", "<|tool_call>call:f{}call:nope{}call:f{}<tool_call|>", "nope"),
    ],
)
def test_calls_around_one_of_an_unknown_tool_are_found(format: str, text: str, between: str) -> None:
    first, middle, last = parts(format, text)
    assert first == last == ("tool_call", "f", "{}")
    assert middle[0] == "text"
    assert between in middle[1]


FORMATS = sorted({tool_format(name).name for name in sorted(tool_formats())})
HEADS = {
    "harmony": "<|channel|>final<|message|>",
    "functionary": "all\n<|content|>",
    "functionary_v32": "all\n",
    "muse_spark": "to=user<|message|>",
}
"""What comes before an answer of formats that have messages."""
PROSE = [
    "Some models use <tool_call> or <function=x>, others use JSON.",
    "Write `<tool_call>` first, then `<function=write>` and `<parameter=path>`.",
    "GLM: <tool_call>read\n<arg_key>path</arg_key> and so on",
    'As JSON: <tool_call>{"name": "nope", "arguments": {}}</tool_call>',
    "[TOOL_CALLS] begins Mistral's, <|python_tag|> Llama's, [Calling tool: f] mine",
    "<minimax:tool_call> or <invoke name=\"write\"> or <|tool_call_start|>[f] <|tool_call|> <TOOLCALL>",
    "```json\n[1, 2]\n``` is a list",
]  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("text", PROSE)
def test_prose_that_mentions_markup_is_text_to_the_letter(format: str, text: str) -> None:
    said = HEADS.get(format, "") + text
    for pieces in ([said], list(said)):
        found = fold(read(reader_of(format, tools=OFFERED), pieces))
        assert "".join(part[1] for part in found) == text
        assert {part[0] for part in found} == {"text"}


@pytest.mark.parametrize("text", PROSE)
def test_a_thought_that_mentions_markup_is_a_thought(text: str) -> None:
    reader = reader_of("qwen3_coder", "qwen3", tools=OFFERED, thinking=True)
    found = fold(read(reader, list(f"{text}</think>Done.")))
    assert found == (("reasoning", text), ("text", "Done."))


# Arguments


@pytest.mark.parametrize(
    "written", ['["a"]', '{"n": NaN}', '{"n": 1e999}', '{"a": }', '"text"', "3", '{"a": 1 "b": 2}']
)
def test_arguments_that_are_no_object_make_no_call(written: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    assert parts("json_tools", text) == (("text", text),)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("{'a': True}", {"a": True}),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ("", {}),
    ],
)
def test_slips_in_arguments_are_made_good(written: str, value: Any) -> None:
    assert json.loads(object_text(written) or "") == value


def test_adjacent_strings_are_one_as_in_python() -> None:
    text = '<|tool_call_start|>[f(a="x" "y", b="c"), g(b=1)]<|tool_call_end|>'
    assert calls("pythonic", text) == [("f", {"a": "xy", "b": "c"}), ("g", {"b": 1})]


# Laws


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_a_cut_at_any_character_leaks_no_markup(sample: Sample) -> None:
    """Whatever is sent of a text that a limit cut off is a beginning of what is sent of the whole text."""
    thinking = sample.reasoning == "kimi_k3"
    whole = [part for part in sample.parts if part[0] != "tool_call"]
    called = [part for part in sample.parts if part[0] == "tool_call"]
    for end in range(len(sample.wire)):
        reader = reader_of(sample.format, sample.reasoning, tools=TOOLS, thinking=thinking)
        found = fold(read(reader, [sample.wire[:end]], truncated=True))
        assert [part for part in found if part[0] == "tool_call"] == called[
            : sum(p[0] == "tool_call" for p in found)
        ]
        said = [part for part in found if part[0] != "tool_call" and part[1].strip()]
        for number, part in enumerate(said):
            assert number < len(whole), (end, part)
            assert whole[number][1].startswith(part[1].strip()), (end, part)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.format)
def test_calls_of_tools_that_nobody_offered_are_text(sample: Sample) -> None:
    other = (Tool(name="other", parameters={}),)
    thinking = sample.reasoning == "kimi_k3"
    found = fold(
        read(reader_of(sample.format, sample.reasoning, tools=other, thinking=thinking), [sample.wire])
    )
    assert {part[0] for part in found} <= {"text", "reasoning"}


def test_texts_around_a_call_keep_the_blank_between_them() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for text, joined in (
        (f"Before. {call} Between. {call} After.", "Before. Between. After."),
        (f"Before.\n{call}\n\nAfter.", "Before.\nAfter."),
        (f"Before.{call}After.", "Before.\nAfter."),
    ):
        for pieces in ([text], list(text)):
            [choice] = collect(read(reader_of("json_tools", tools=OFFERED), pieces)).choices
            assert choice.text("text") == joined


def test_thoughts_keep_the_blank_between_them() -> None:
    events = read(reader_of(None, "qwen3"), ["Text first.\n<think>t1</think>\n\n<think>t2</think>\nAnswer"])
    [choice] = collect(events).choices
    assert choice.text("text") == "Text first.\nAnswer"
    assert choice.text("reasoning") == "t1\n\nt2"


def test_the_characters_of_a_special_token_are_text_where_the_vocabulary_has_the_token() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    reader = reader_of(
        "json_tools", tools=OFFERED, markup=Markup(tokens=frozenset({"<tool_call>", "</tool_call>"}))
    )
    assert fold(read(reader, [f"Like this: {call}"])) == (("text", f"Like this: {call}"),)


def test_an_opener_that_begins_as_a_bare_call_does_is_read_as_the_opener() -> None:
    written = '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]'
    assert calls("xlam", written) == [("f", {"a": 1})]


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ('write path="a b.md" content=7 n=7', {"path": "a b.md", "content": "7", "n": 7}),
        ('write {"path": "p.md"}', {"path": "p.md"}),
        ('write\n{"path": "p.md"}\n', {"path": "p.md"}),
        ("write", {}),
    ],
)
def test_glms_calls_without_tags_are_read_as_its_reference_does(said: str, arguments: dict[str, Any]) -> None:
    """mlx-lm's mlx_lm/tool_parsers/glm47.py, _parse_plain_text_tool_call."""
    assert calls("glm47", f"<tool_call>{said}</tool_call>") == [("write", arguments)]


@pytest.mark.parametrize(
    "said", ["write the file", 'write path="a', "write path=a and b", "nope path=a", 'write {"a"']
)
def test_what_is_no_call_of_glm_stays_text(said: str) -> None:
    text = f"Say <tool_call>{said}</tool_call>."
    assert parts("glm47", text) == (("text", text),)


@pytest.mark.parametrize(
    ("format", "head"),
    [
        ("qwen3_coder", "<function=f>"),
        ("json_tools", "<function=f>"),
        ("llama", "<function=f>"),
        ("functionary_v31", "<function=f>"),
        ("minicpm5", '<function name="f">'),
    ],
)
def test_a_text_may_end_in_the_head_of_a_call(format: str, head: str) -> None:
    assert parts(format, f"It writes {head}") == (("text", f"It writes {head}"),)


NEEDY = Tool("write", None, {"properties": {"path": {}, "text": {}}, "required": ["path", "text"]})
LOOK = Tool("look", None, {"properties": {"deep": {}, "where": {"type": "string"}}, "required": ["where"]})


@pytest.mark.parametrize("said", ["write the file", "write", "look", "look\nwrite the file"])
def test_a_line_in_a_fence_is_a_call_only_with_all_that_the_tool_needs(said: str) -> None:
    text = f"```tool_code\n{said}\n```"
    assert fold(read(reader_of("gemma3", tools=(NEEDY, LOOK)), [text])) == (("text", text),)


def test_a_line_in_a_fence_gives_the_argument_that_the_tool_needs() -> None:
    text = "```tool_code\nlook around here\n```"
    [(_, name, arguments)] = fold(read(reader_of("gemma3", tools=(NEEDY, LOOK)), list(text)))
    assert (name, json.loads(arguments)) == ("look", {"where": "around here"})


def test_an_array_alone_is_functionarys_calls() -> None:
    """vllm-mlx's vllm_mlx/tool_parsers/functionary_tool_parser.py, JSON_ARRAY_PATTERN."""
    text = '[{"name": "f", "arguments": {"a": "x"}}, {"name": "g", "arguments": {"b": 1}}]'
    assert calls("functionary", text) == [("f", {"a": "x"}), ("g", {"b": 1})]
    assert parts("functionary", "[1, 2] is a list") == (("text", "[1, 2] is a list"),)


def test_calls_in_brackets_alone_are_read_where_the_template_tells_nothing() -> None:
    """vllm-mlx's vllm_mlx/tool_parsers/auto_tool_parser.py, BARE_BRACKET_PATTERN and _parse_raw_json_tool_calls."""
    assert calls("auto", '[f({"a": 1})]') == [("f", {"a": 1})]
    assert calls("auto", '[Calling tool: f({"a": 1})]') == [("f", {"a": 1})]
    assert calls("auto", '[{"name": "f", "arguments": {"a": 1}}]') == [("f", {"a": 1})]
    for text in (
        "[1] is a source (of it)",
        "[nope({})]",
        "[ a list ]",
        "[x](https://example.org)",
    ):
        assert parts("auto", text) == (("text", text),)


@pytest.mark.parametrize("rest", ['" b}}</tool_call>', " ", '"}, "oops"}</tool_call> Bye.'])
def test_a_long_call_that_breaks_off_is_text_and_counts_as_none(rest: str) -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": "{"x" * 5000}{rest}'
    reader = OutputReader(0, Formats(tools=tool_format("json_tools")), ToolUse(tools=OFFERED))
    found = fold(read(reader, [text[:3000], text[3000:]]))
    assert "".join(part[1] for part in found) == text
    assert {part[0] for part in found} == {"text"}
    assert reader.calls == 0


# What models write that is not quite the format, with the thread that shows it

NOTHING = {"type": "object", "properties": {}}
NOW = Tool(name="now", parameters=NOTHING)
SLIPS = (
    # An end of a value is missing: ollama#14656, sglang#40236. It may be that of the last value, or of each call.
    ("glm47", "<tool_call>f<arg_key>a</arg_key><arg_value>x</tool_call>", [("f", {"a": "x"})]),
    (
        "glm47",
        "<tool_call>f<arg_key>a</arg_key><arg_value>x</tool_call>\n"
        "<tool_call>g<arg_key>b</arg_key><arg_value>5</arg_value></tool_call>",
        [("f", {"a": "x"}), ("g", {"b": 5})],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\nx\n</tool_call>",
        [("f", {"a": "x"})],
    ),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nx\n</function>", [("f", {"a": "x"})]),
    (
        "seed_oss",
        "<seed:tool_call><function=f><parameter=a>x</function></seed:tool_call>",
        [("f", {"a": "x"})],
    ),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x</invoke>\n</minimax:tool_call>',
        [("f", {"a": "x"})],
    ),
    (
        "deepseek_v32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">x'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [("f", {"a": "x"})],
    ),
    # The beginning of the first key is missing: vllm#47190.
    ("glm47", "<tool_call>fa</arg_key><arg_value>x</arg_value></tool_call>", [("f", {"a": "x"})]),
    (
        "glm47",
        "<tool_call>write path</arg_key><arg_value>x</arg_value></tool_call>",
        [("write", {"path": "x"})],
    ),
    # One closing bracket too many: langchain-qwq#30. What follows is no text.
    ("json_tools", '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}}\n</tool_call>', [("f", {"a": "x"})]),
    ("granite", '<|tool_call|>[{"name": "f", "arguments": {"a": "x"}}}]', [("f", {"a": "x"})]),
    (
        "xlam",
        '[{"name": "f", "arguments": {"a": "x"}}}, {"name": "g", "arguments": {"b": 5}}}]',
        [("f", {"a": "x"}), ("g", {"b": 5})],
    ),
    ("mistral", '[TOOL_CALLS]f{"a": "x"}}', [("f", {"a": "x"})]),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": "x"}}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>'
        '{"b": 5}}<|tool_call_end|><|tool_calls_section_end|>',
        [("f", {"a": "x"}), ("g", {"b": 5})],
    ),
    (
        "deepseek_v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "x"}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [("f", {"a": "x"})],
    ),
    (
        "harmony",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "x"}}<|call|>',
        [("f", {"a": "x"})],
    ),
    ("gemma4", '<|tool_call>call:f{a:<|"|>x<|"|>}}<tool_call|>', [("f", {"a": "x"})]),
    ("llama4_pythonic", '[f(a="x"),]', [("f", {"a": "x"})]),
    # Two opening brackets: llamadart#43.
    (
        "json_tools",
        '<tool_call>\n{{"name": "f", "arguments": {"a": "x"}}}\n</tool_call>',
        [("f", {"a": "x"})],
    ),
    # No closing bracket at the end of the answer: Qwen-Agent#734, hermes-agent#115096.
    ("json_tools", '<tool_call>\n{"name": "f", "arguments": {"a": "x"}\n', [("f", {"a": "x"})]),
    ("mistral", '[TOOL_CALLS]f{"a": "x"', [("f", {"a": "x"})]),
    ("gemma4", '<|tool_call>call:f{a:<|"|>x<|"|><tool_call|>', [("f", {"a": "x"})]),
    # Arguments beside the name, quotes of Python.
    ("json_tools", '<tool_call>\n{"name": "f", "a": "x", "id": 1}\n</tool_call>', [("f", {"a": "x"})]),
    (
        "json_tools",
        "<tool_call>\n{'name': 'f', 'arguments': {'a': 'it\\'s', 'b': None}}\n</tool_call>",
        [("f", {"a": "it's", "b": None})],
    ),
    # Strings of Python and JSON in Gemma's calls: vllm#51284.
    ("gemma4", "<|tool_call>call:f{a:['x, y', \"z\"]}<tool_call|>", [("f", {"a": ["x, y", "z"]})]),
    # Ids of Kimi that name the tool otherwise, or not at all: exo#2281, sglang#21377, vllm#46127; llama.cpp#17376.
    *(
        (
            "kimi_k2",
            f"<|tool_calls_section_begin|><|tool_call_begin|>{call_id}<|tool_call_argument_begin|>"
            '{"b": 5}<|tool_call_end|><|tool_calls_section_end|>',
            [("g", {"b": 5})],
        )
        for call_id in ("functions_g_1", "functionsg5", "g:0", "functions.g", "g_0")
    ),
    (
        "kimi_k2",
        "<|tool_call_section_begin|><|tool_call_begin|>3<|tool_call_argument_begin|>"
        '{"path": "x", "content": "y"}<|tool_call_end|><|tool_call_section_end|>',
        [("write", {"path": "x", "content": "y"})],
    ),
    # No arguments at all: vllm#28806, vllm#44326.
    *(
        (name, text.replace("F", "now"), [("now", {})])
        for name, text in (
            ("kimi_k2", "<|tool_call_begin|>functions.F:0<|tool_call_argument_begin|><|tool_call_end|>"),
            ("kimi_k2", "<|tool_call_begin|>functions.F:0<|tool_call_end|>"),
            ("deepseek_v31", "<｜tool▁call▁begin｜>F<｜tool▁sep｜><｜tool▁call▁end｜>"),
            ("deepseek_v31", "<｜tool▁call▁begin｜>F<｜tool▁call▁end｜>"),
            ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>F\n<｜tool▁call▁end｜>"),
            ("solar_open", "<|tool_call:begin|>i<|tool_call:name|>F<|tool_call:args|><|tool_call:end|>"),
        )
    ),
)


@pytest.mark.parametrize(("format", "text", "expected"), SLIPS)
def test_slips_that_trackers_report_are_made_good(
    format: str, text: str, expected: list[tuple[str, Any]]
) -> None:
    tools = (*OFFERED, NOW)
    whole = fold(read(reader_of(format, tools=tools), [text]))
    assert fold(read(reader_of(format, tools=tools), list(text))) == whole
    assert [(part[1], json.loads(part[2])) for part in whole if part[0] == "tool_call"] == expected
    assert {part[0] for part in whole} == {"tool_call"}, whole


def test_a_number_as_the_id_names_no_tool_where_two_fit() -> None:
    text = '<|tool_call_begin|>0<|tool_call_argument_begin|>{"b": 5}<|tool_call_end|>'
    tools = (G, Tool(name="h", parameters=G.parameters))
    assert fold(read(reader_of("kimi_k2", tools=tools), [text])) == (("text", text),)


@pytest.mark.parametrize("format", ["glm47", "qwen3_coder"])
def test_many_ends_inside_a_value_are_read_in_one_go(format: str) -> None:
    content = "Use </tool_call> or </function> here.\n" * 2_000
    began = time.process_time()
    assert calls(format, LAYOUTS[format].replace("{}", content + "."))[0][1]["content"] == content + "."
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("format", "wire", "value"),
    [
        (
            "hermes",
            r"""<tool_call>{"name": "f", "arguments": "{\"a\": \"\u123\\\\ b\"}"}</tool_call>""",
            r"\u123\ b",
        ),
        ("gemma3", "```tool_code\nf(a='\\x4\\q')\n```", r"\x4\q"),
    ],
)
def test_an_escape_that_another_one_cuts_short_stays_as_it_is(format: str, wire: str, value: str) -> None:
    ((_, name, arguments),) = fold(read(reader_of(format, tools=OFFERED), [wire]))
    assert (name, json.loads(arguments)) == ("f", {"a": value})
