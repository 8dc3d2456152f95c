"""One step of the language engine, from waiting sequences to events.

Read `engine` (the step and its order), `scheduler` (who runs when), `sequences` (a sequence and its stages),
`lifecycle` (every change of stage), `batch` (one pass, one draw). Beside them: `prefill` computes prompts, `decoder`
makes text and events of tokens, `speculation/` proposes tokens, `cost` foresees how long a step takes, `stats` reports.
"""
