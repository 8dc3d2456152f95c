"""`<｜DSML｜invoke name="f"><｜DSML｜parameter name="k" string="true">v...` in a block: DeepSeek 4."""

from pippin.output.notations.invoke_calls import InvokeCalls
from pippin.output.notations.parameters import Tags
from pippin.output.tool_format import History

FORMAT = InvokeCalls(
    name="deepseek_v4",
    aliases=("dsml",),
    openers=("<｜DSML｜tool_calls>", "<｜DSML｜function_calls>"),
    closers=("</｜DSML｜tool_calls>", "</｜DSML｜function_calls>"),
    invoke="<｜DSML｜invoke",
    tags=Tags(opens="<｜DSML｜parameter", close="</｜DSML｜parameter>", ends=("</｜DSML｜invoke>",)),
    typed=True,
    history=History(arguments="json"),
    signs=(("｜DSML｜",),),
    priority=50,
)
