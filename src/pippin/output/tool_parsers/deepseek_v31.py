"""`<｜tool▁call▁begin｜>f<｜tool▁sep｜>{json}<｜tool▁call▁end｜>` in a section: DeepSeek V3.1."""

import json
from dataclasses import replace
from typing import Any

from pippin.output.tool_format import History
from pippin.output.tool_parsers.deepseek import BEGIN, END, SECTION, SECTION_END, SEPARATOR
from pippin.output.tool_parsers.deepseek import FORMAT as DEEPSEEK


def write(name: str, arguments: dict[str, Any]) -> str:
    call = f"{BEGIN}{name}{SEPARATOR}{json.dumps(arguments, ensure_ascii=False)}{END}"
    return f"{SECTION}{call}{SECTION_END}"


FORMAT = replace(
    DEEPSEEK,
    name="deepseek_v31",
    aliases=(),
    fenced=False,
    history=History(write=write),
    signs=((SECTION,),),
    priority=40,
)
