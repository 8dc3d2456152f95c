"""`<｜DSML｜function_calls>` around the calls of DeepSeek 4: DeepSeek 3.2."""

from dataclasses import replace

from pippin.output.tool_parsers.deepseek_v4 import FORMAT as DEEPSEEK_V4

FORMAT = replace(
    DEEPSEEK_V4,
    name="deepseek_v32",
    aliases=(),
    openers=DEEPSEEK_V4.openers[::-1],
    closers=DEEPSEEK_V4.closers[::-1],
    signs=(("｜DSML｜", "function_calls"),),
    priority=51,
)
