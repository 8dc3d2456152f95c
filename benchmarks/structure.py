"""Tokens a second under schemas and of forced tool calls, beside as many tokens of free text, in turns.

    python -m benchmarks.structure --model FOLDER [--streams 1 8] [--spacing any one-line] [--rounds 5]

Five schemas (a person, a ticket, a file edit, an invoice of five lines, five scores) and five forced tool calls with
the same parameters, greedily. A round answers all ten, `--streams` at a time, then the same prompts without a grammar,
each for as many tokens as its answer had. Shown are medians of the rounds: the ratio of tokens a second by the clock
and by the processor's time, and the share of tokens that the grammar forced.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.speculation import Subject
from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Message, Text, Tool, ToolChoice
from pippin.core.events import Finished
from pippin.core.requests import GenerationRequest, JsonSchema, JsonSpacing, Sampling
from pippin.core.tasks import Generate
from pippin.engines.cpu.blas import accelerate_blas

Schema = dict[str, Any]
MOST_TOKENS = 400


def closed(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def listed(items: Schema, count: int) -> Schema:
    return {"type": "array", "items": items, "minItems": count, "maxItems": count}


NAME: Schema = {"type": "string", "maxLength": 24}
WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": 9999}

SCHEMAS: dict[str, Schema] = {
    "person": closed(
        first_name=NAME,
        last_name=NAME,
        age=WHOLE,
        address=closed(street=NAME, house_number=WHOLE, postal_code=NAME, city=NAME, country=NAME),
    ),
    "ticket": closed(
        title=NAME,
        description={"type": "string", "maxLength": 80},
        priority={"enum": ["low", "medium", "high", "critical"]},
        category={"enum": ["billing", "technical", "account", "other"]},
        needs_human={"type": "boolean"},
    ),
    "file_edit": closed(
        file_path=NAME,
        old_string={"type": "string", "maxLength": 60},
        new_string={"type": "string", "maxLength": 60},
        replace_all={"type": "boolean"},
    ),
    "invoice": closed(
        invoice_number=NAME,
        customer=NAME,
        lines=listed(closed(description=NAME, quantity=WHOLE, unit_price=WHOLE), 5),
    ),
    "scores": closed(
        **{
            name: closed(score={"type": "integer", "minimum": 1, "maximum": 5}, reason=NAME)
            for name in ("accuracy", "completeness", "clarity", "tone", "formatting")
        }
    ),
}


def requests(spacing: JsonSpacing) -> list[GenerationRequest]:
    """A request for each schema, then one for each as a forced tool call."""
    found = []
    for name, schema in SCHEMAS.items():
        words = f"Invent an example of a {name.replace('_', ' ')} and write it as JSON."
        common: dict[str, Any] = {
            "model": "bench",
            "messages": (Message("user", (Text(words),)),),
            "sampling": Sampling(temperature=0.0),
            "max_tokens": MOST_TOKENS,
        }
        answer = JsonSchema(schema, strict=True)
        found.append(GenerationRequest(output_format=answer, json_spacing=spacing, **common))
        tool = Tool(f"save_{name}", f"Saves a {name}.", schema)
        found.append(GenerationRequest(tools=(tool,), tool_choice=ToolChoice("required"), **common))
    return found


def run(
    subject: Subject, wanted: list[GenerationRequest], streams: int
) -> tuple[float, float, list[int], int]:
    """Seconds by the clock and of the processor in all, and the tokens of each answer and how many were forced."""
    engine, waiting = subject.engine, list(enumerate(wanted))
    numbers: dict[str, int] = {}
    counts, forced = [0] * len(wanted), 0
    clock, processor = time.perf_counter(), time.process_time()
    while waiting or engine.busy:
        while waiting and len(numbers) < streams:
            number, request = waiting.pop(0)
            name = f"{time.monotonic_ns()}"
            prepared = subject.preparer.prepare(name, Generate(request))
            assert not isinstance(prepared, tuple), prepared
            numbers[name] = number
            engine.submit(prepared)
        for name, event in engine.step():
            if isinstance(event, Finished):
                counts[numbers.pop(name)] = event.usage.completion_tokens
                forced += event.usage.forced_tokens
    return time.perf_counter() - clock, time.process_time() - processor, counts, forced


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--spacing", nargs="+", default=["any", "one-line"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    accelerate_blas(ModelOptions(), options.threads)
    subject = Subject(options.model, kernels=True, threads=options.threads, prefix_cache=True)
    print("| spacing | streams | tokens | forced | of free text, clock | of free text, processor |")
    print("|---|---|---|---|---|---|")
    for spacing in options.spacing:
        wanted = requests(spacing)
        for streams in options.streams:
            ratios: list[tuple[float, float]] = []
            for number in range(options.rounds + 1):
                clock, processor, counts, forced = run(subject, wanted, streams)
                free = [
                    GenerationRequest(
                        model="bench",
                        messages=request.messages,
                        sampling=request.sampling,
                        max_tokens=count,
                        ignore_eos=True,
                    )
                    for request, count in zip(wanted, counts, strict=True)
                ]
                free_clock, free_processor, free_counts, _ = run(subject, free, streams)
                assert free_counts == counts
                if number:  # the first round compiles and warms
                    ratios.append((free_clock / clock, free_processor / processor))
            shown = [statistics.median(ratio) for ratio in zip(*ratios, strict=True)]
            share = forced / sum(counts)
            print(
                f"| {spacing} | {streams} | {sum(counts)} | {share:.0%} | {shown[0]:.2f} | {shown[1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
