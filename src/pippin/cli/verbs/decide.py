"""`pippin decide`: asks the running server for the probabilities of answers about a text."""

import sys
from argparse import Namespace
from typing import Any

from pippin.cli.arguments import CLIENT, argument, verb
from pippin.cli.running import ask
from pippin.cli.terminal import as_json, say, table


@verb(
    "decide",
    *CLIENT,
    argument("state", nargs="?", help="the text; standard input if not given"),
    argument("--question", action="append", required=True, metavar="TEXT", help="may be given several times"),
    argument("--labels", metavar="A,B,...", help="the answers; yes and no if not given"),
    argument("--model", default="default", help="the model's name; the one served if not given"),
)
def decide(parsed: Namespace) -> int:
    state = sys.stdin.read() if parsed.state is None else parsed.state
    asked: dict[str, Any] = {"type": "noul"}
    if parsed.labels is not None:
        labels = [label.strip() for label in parsed.labels.split(",") if label.strip()]
        asked = {"type": "choice", "criteria": dict.fromkeys(labels)}
    # The same question may be given twice, so names are numbers.
    questions = {str(number): {**asked, "instructions": text} for number, text in enumerate(parsed.question)}
    body = {"model": parsed.model, "state": state, "questions": questions}
    answers = ask(parsed, "POST", "/v1/systemone", body)["answers"]
    found: dict[str, dict[str, float]] = {}
    for number, text in enumerate(parsed.question):
        answer = answers[str(number)]
        if answer["type"] == "noul":
            found[text] = {"yes": answer["noul"], "no": 1 - answer["noul"]}
        else:
            found[text] = answer["probabilities"]
    if parsed.json:
        say(as_json(found))
        return 0
    rows = [
        (text, label, f"{chance:.3f}")
        for text, chances in found.items()
        for label, chance in sorted(chances.items(), key=lambda each: -each[1])
    ]
    say(table(("QUESTION", "ANSWER", "PROBABILITY"), rows))
    return 0
