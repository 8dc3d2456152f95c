"""One step of the language engine, from waiting sequences to events. Begin with `engine.py`: the step and its order.

Its `Decoding` gives the running sequences their tokens. Then read `scheduler` (who runs when), `sequences` (a sequence
and its stages), `lifecycle` (every change of stage) and `batch` (one pass, one draw). Beside them: `prefill` computes
prompts, `decoder` makes text and events of tokens, `speculation/` proposes tokens.
"""
