"""One step of the language engine, from waiting sequences to events. Begin with `engine.py`: the step and its order.

Then read `decoding` (tokens for the running sequences), `scheduler` (who runs when), `sequences` (a sequence and its
stages), `lifecycle` (every change of stage) and `batch` (one pass, one draw). Beside them: `prefill` computes prompts,
`joining` says which in one pass, `decoder` makes text and events of tokens, `speculation/` proposes tokens,
`statistics` tells what an engine does, `changes` says which options may change meanwhile.
"""
