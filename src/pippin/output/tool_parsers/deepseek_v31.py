"""`<｜tool▁call▁begin｜>f<｜tool▁sep｜>{json}<｜tool▁call▁end｜>` in a section: DeepSeek V3.1."""

from dataclasses import replace

from pippin.output.tool_parsers.deepseek import FORMAT as DEEPSEEK
from pippin.output.tool_parsers.deepseek import SECTION

FORMAT = replace(DEEPSEEK, name="deepseek_v31", aliases=(), fenced=False, signs=((SECTION,),), priority=40)
