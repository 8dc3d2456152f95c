"""`<start_function_call>call:f{k:<escape>v<escape>}<end_function_call>`: FunctionGemma."""

from pippin.output.notations.gemma_calls import GemmaCalls

FORMAT = GemmaCalls(
    name="functiongemma",
    aliases=("function_gemma",),
    openers=("<start_function_call>",),
    closers=("<end_function_call>",),
    fence="<escape>",
    further_markers=("<escape>",),
    stops=("<start_function_response>",),
    signs=(("<start_function_call>",),),
    priority=50,
)
