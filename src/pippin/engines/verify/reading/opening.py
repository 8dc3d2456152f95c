"""How a model begins its answers, beside what its template writes before them."""

import math
from collections.abc import Iterator
from typing import Final

from pippin.core.conversation import Message, Text
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest
from pippin.core.verification import Finding
from pippin.engines.verify.asking import Served
from pippin.engines.verify.findings import finding
from pippin.engines.verify.questions import questions
from pippin.engines.verify.template import THINKS, Written

EVERY: Final = 40  # questions, of which one is asked
MOST: Final = 0.75
"""The share of answers that begin so."""
SURE: Final = 0.5
"""The mean probability of what begins the answers. SmolLM2 begins none with a line end, but with 0.8 where its template
lost the one behind the speaker's name."""


def check(served: Served, written: Written) -> Iterator[Finding]:
    """Ask a few questions. Most answers must not begin with a line end that the template writes before no earlier
    answer. Only a model that was trained to talk tells anything by this."""
    asked = [(Message("user", (Text(each.asked),)),) for each in questions()[::EVERY]]
    said = (*asked[0], Message("assistant", (Text("Yes."),)), *asked[0])
    try:
        prompt, told = written.render(asked[0], (), True), written.render(said, (), True)
    except ServerError:  # which the section on the template tells
        return
    each = [GenerationRequest(model="verify", messages=said, max_tokens=1, logprobs=0) for said in asked]
    parts = [answer.choices[0].parts for answer in served.ask(each)]
    first = [part[0].tokens[0] for part in parts if part and part[0].tokens]
    ends = [token for token in first if token.raw.strip(b" \n") == b"" and b"\n" in token.raw]
    share = sum(math.exp(token.logprob or 0.0) for token in ends) / len(asked)
    lines = {token.raw.decode() for token in ends}
    own = any(told.startswith(prompt + line) for line in lines) or THINKS.search(prompt[-20:])
    if len(ends) >= MOST * len(asked) and share > SURE and not own:
        yield finding("answer-expects", line=lines.pop(), share=share)
