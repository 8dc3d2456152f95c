"""Real chat templates: detected by their text, and the calls that they render read back.

The templates are those of the models' repositories (Apache-2.0: Qwen3-Coder-30B-A3B-Instruct, Qwen3.5-27B,
gpt-oss-20b, Mistral-Small, Gemma 4 31B; MIT: LongCat-Flash-Lite; Hermes 3).
"""

import json
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import pytest

from pippin.output.formats import detect, reasoning_format, tool_format
from tests.output.reading import fold, read, reader_of
from tests.output.wire import CLOCK, TOOLS, WEATHER

FOLDER = Path(__file__).parent / "templates"
ENDS = ("<|im_end|>", "<turn|>", "</s>", "</longcat_s>", "<|tool_response>")
REAL = {
    "qwen3_coder": ("qwen3_coder", None),
    "qwen3_5": ("qwen3_coder", "think"),
    "gemma4": ("gemma4", "gemma4"),
    "longcat": ("longcat", None),
    "mistral_small": ("mistral", None),
    "hermes3": ("json_tools", None),
    "gpt_oss": ("harmony", "harmony"),
}


def environment() -> jinja2.Environment:
    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda pattern: "2026-01-01"
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    return environment


def render(name: str, messages: list[dict[str, Any]], prompt: bool) -> str:
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": "D",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
        for tool in TOOLS
    ]
    template = environment().from_string((FOLDER / f"{name}.jinja").read_text())
    return template.render(
        messages=messages, tools=tools, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>"
    )


ARGUMENTS = {"city": "Paris <x> {y}", "days": 3, "metric": True, "tags": ["a", "b"]}


@pytest.mark.parametrize("name", REAL)
def test_a_real_template_is_detected(name: str) -> None:
    found = detect((FOLDER / f"{name}.jinja").read_text())
    assert (found.tool and found.tool.name, found.reasoning and found.reasoning.name) == REAL[name]


@pytest.mark.parametrize("name", REAL)
def test_calls_that_a_real_template_renders_are_read_back(name: str) -> None:
    tool, reasoning = REAL[name]
    calls = [(WEATHER.name, ARGUMENTS), (CLOCK.name, {})]
    if name == "gpt_oss":
        calls = calls[:1]  # its template renders one call a message
    asked = [{"role": "user", "content": "Weather?"}]
    drawn = [
        {"id": f"abcdefgh{index}", "type": "function", "function": {"name": called, "arguments": given}}
        for index, (called, given) in enumerate(calls)
    ]
    prompt = render(name, asked, prompt=True)
    whole = render(name, [*asked, {"role": "assistant", "content": "", "tool_calls": drawn}], prompt=False)
    thinking = reasoning is not None and reasoning_format(reasoning).open_in(prompt)
    wire = whole[whole.rindex("[/INST]") + 7 :] if name == "mistral_small" else answer(prompt, whole)
    for end in ENDS:
        wire = wire.partition(end)[0]
    reader = reader_of(tool, reasoning, tools=TOOLS, thinking=thinking)
    parts = fold(read(reader, list(wire)))
    read_back = [(part[1], json.loads(part[2])) for part in parts if part[0] == "tool_call"]
    assert read_back == calls, wire
    assert all(part[0] == "tool_call" for part in parts), wire


def answer(prompt: str, whole: str) -> str:
    """What follows the prompt, or the line in which they part."""
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    size = next(i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b)
    return whole[whole.rindex("\n", 0, size) + 1 :]


SNIPPETS = {
    "atem": ("<atem:function_calls> <atem:invoke", "atem", None),
    "gemma4": ("<|tool_call>call: <tool_call|> <|channel>thought", "gemma4", "gemma4"),
    "cohere": ("<|START_THINKING|> <|START_ACTION|>", "cohere2_moe", "cohere"),
    "minimax_m3": ("{% set ns = ']<]minimax[>[' %}<mm:think>", "minimax_m3", "minimax_m3"),
    "minimax_m2": ("<minimax:tool_call> <invoke name= <think>", "minimax_m2", "think"),
    "minicpm5": ('<function name="f"><param name="p">', "minicpm5", None),
    "glm": ("[gMASK]<sop> <tool_call> <arg_key> <think>", "glm47", "glm4"),
    "lfm2": ("<|tool_list_start|> <|tool_call_start|>", "pythonic", None),
    "kimi_k2": ("<|tool_calls_section_begin|> <think>", "kimi_k2", "think"),
    "kimi_k3": ("{{- '<|open|>' + tag -}} {{- '<|sep|>' -}}", "kimi_k3", "kimi_k3"),
    "magistral": ("[TOOL_CALLS] [ARGS] [THINK]", "mistral", "mistral"),
    "llama3.1": ('<|python_tag|> {"name": function name, "parameters"', "llama", None),
    "llama3.2": ('Respond in the format {"name": function name, "parameters": dict', "llama", None),
    "llama4": ("[func_name1(param1=value1), func_name2(...)]", "llama4_pythonic", None),
    "deepseek_v3": ("<｜tool▁calls▁begin｜> ```json", "deepseek", None),
    "deepseek_v3.1": ("<｜tool▁calls▁begin｜> <｜tool▁sep｜> </think>", "deepseek_v31", "think"),
    "deepseek_v3.2": ("｜DSML｜ function_calls <think>", "deepseek_v4", "think"),
    "granite3": ("<|tool_call|>", "granite", None),
    "functionary": ("<|from|> <|recipient|> <|content|>", "functionary", None),
    "solar": ("<|think|> <|tool_calls|> <|tool_call:begin|>", "solar_open", "solar_open"),
    "muse": ("to=self<|message|> <|eom|> <atem:function_calls>", "muse_spark", "muse_spark"),
    "qwen2.5": ('<tool_call>\\n{"name": ' + "tool_call.name", "json_tools", None),
    "plain": ("<|im_start|>user", None, None),
}


@pytest.mark.parametrize("family", SNIPPETS)
def test_a_familys_markers_are_told_apart(family: str) -> None:
    template, tool, reasoning = SNIPPETS[family]
    found = detect(template)
    assert (found.tool and found.tool.name, found.reasoning and found.reasoning.name) == (tool, reasoning)


def test_no_two_formats_of_one_priority_match_a_template() -> None:
    for template, name, _ in SNIPPETS.values():
        if name:
            winner = tool_format(name)
            rivals = [
                other
                for other in {tool_format(known[1]).name for known in SNIPPETS.values() if known[1]}
                if other != name and tool_format(other).matches(template)
            ]
            assert all(tool_format(other).priority < winner.priority for other in rivals), (name, rivals)
