"""How long decisions take: many questions about one state beside one question, by a running server.

    python -m benchmarks.decisions http://127.0.0.1:8000 [--model NAME] [--tokens 2000] [--questions 64]

Each measurement has a state of its own, so that the prefix cache knows nothing of it. Rounds alternate, and the ratio
is that of the medians. Up to 64 questions are all different.
"""

import argparse
import random
import statistics
import time
from typing import Any

import httpx

ASKED = (
    "Is the customer {word}?",
    "Does the text sound {word} to a careful reader?",
    "Should we answer that it is {word} today?",
    "Would you call the order {word}, or not?",
)
WORDS = (
    "urgent angry polite short funny legal technical sad late wrong rude clear new old spam formal".split()
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address")
    parser.add_argument("--model", default="default")
    parser.add_argument("--tokens", type=int, default=2000, help="of the state, about")
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--labels", nargs="*", help="of choices; without it, questions are answered yes or no"
    )
    parsed = parser.parse_args()
    seconds: dict[int, list[float]] = {1: [], parsed.questions: []}
    tokens: dict[int, int] = {}
    for _ in range(parsed.repeats):
        for count, taken in seconds.items():
            began = time.perf_counter()
            usage = _decide(parsed, count)
            taken.append(time.perf_counter() - began)
            tokens[count] = usage["input_tokens"]
    one, many = (statistics.median(taken) for taken in seconds.values())
    print(f"one question: {one:.2f} s of {tokens[1]} tokens")
    print(f"{parsed.questions} questions: {many:.2f} s of {tokens[parsed.questions]} tokens")
    print(f"{many / one:.2f} times as long")


def _decide(parsed: argparse.Namespace, count: int) -> dict[str, Any]:
    state = " ".join(random.choices(WORDS, k=parsed.tokens))
    kind = {"type": "choice", "criteria": parsed.labels} if parsed.labels else {"type": "noul"}
    questions = {
        str(number): {
            **kind,
            "instructions": ASKED[number // len(WORDS) % len(ASKED)].format(word=WORDS[number % len(WORDS)]),
        }
        for number in range(count)
    }
    body = {"model": parsed.model, "state": state, "questions": questions}
    reply = httpx.post(f"{parsed.address}/v1/systemone", json=body, timeout=600)
    reply.raise_for_status()
    usage: dict[str, Any] = reply.json()["usage"]
    return usage


if __name__ == "__main__":
    main()
