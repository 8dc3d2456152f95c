"""`[f(a="b"), g()]` alone, or between `<|python_start|>` and `<|python_end|>`: Llama 3.2, Llama 4, OLMo."""

from pippin.output.tool_parsers.pythonic import LLAMA_END, LLAMA_START, PythonicCalls

FORMAT = PythonicCalls(
    name="llama4_pythonic",
    aliases=("pythonic_list",),
    openers=(LLAMA_START,),
    leading=("[",),
    closers=(LLAMA_END,),
    signs=((LLAMA_START,), ("[func_name1(",)),
    priority=15,
)
