"""What a model says when it is asked many things: the texts that `benchmarks.draft_head` trains a head on.

Prompts are templates filled with subjects. Subjects of the held-out texts occur in none of the others.
"""

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Message, Text
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate

SUBJECTS = """
rivers; bread; the moon; bicycles; winter; honey bees; the printing press; volcanoes; chess; glass; rice; whales;
the violin; bridges; coffee; deserts; clocks; owls; the steam engine; salt; libraries; kites; tides; maps; paper;
wolves; gardens; lighthouses; silk; mountains; the compass; potatoes; rainbows; trains; penguins; cotton; lightning;
pottery; forests; the telescope; cheese; earthquakes; sailing ships; butterflies; iron; jazz; sleep; elephants;
snow; the abacus; markets; caves; tea; eagles; photography; wells; windmills; apples; glaciers; weaving; dolphins;
the alphabet; roads; copper; tomatoes; islands; the heart; castles; ants; radio; spices; canals; horses; comets;
soap; maple trees; harbours; vaccines; sugar; swimming; stars; wool; the piano; floods; lions; candles; oceans;
bamboo; dancing; batteries; corals; friendship; money; cities; memory; music; dreams; sport; schools; robots;
computers; the internet; electricity; water; fire; light; gravity; plants; weather; health
""".split(";")
HELD_OUT = """
turtles; the wheel; olives; thunder; mirrors; camels; football; marble; frogs; the sun; bricks; parks; mushrooms;
satellites; keys; oranges
""".split(";")
TEMPLATES = (
    "Write a short story about {}.",
    "Explain {} to a child.",
    "What are the most important facts about {}?",
    "Write a letter to a friend about {}.",
    "List ten ideas for a school project about {}, with a sentence on each.",
    "Why do {} matter to people?",
    "Write a Python class that models {}, with comments.",
    "Write a poem about {}.",
    "Give me a step by step plan to learn everything about {}.",
    "Compare {} with something that is similar, and say what differs.",
    "Write a dialogue between two friends who talk about {}.",
    "Write a Python function that prints a table about {}.",
    "Summarise the history of {} in three paragraphs.",
    "Write a blog post about {} with headings.",
)


class Said(NamedTuple):
    """A conversation as tokens."""

    tokens: list[int]
    prompt: int  # of them that the user's side takes


def prompts(count: int, *, held_out: bool) -> list[str]:
    """So many, in an order that is the same each time."""
    subjects = [each.strip() for each in (HELD_OUT if held_out else SUBJECTS)]
    every = [template.format(subject) for template in TEMPLATES for subject in subjects]
    Random(5).shuffle(every)
    return every[:count]


def opened(folder: Path, together: int = 16) -> tuple[Any, Any]:
    """The engine of a model, and what prepares its requests."""
    from pippin.engines.language import open_engine, open_preparer  # these import mlx

    # Twice as fast on a CPU, and as good for learning from.
    options = ModelOptions(prefix_cache=False, max_num_seqs=together, cpu_activations="int8")
    spec = WorkerSpec(
        info=ModelInfo(id="bench", kind="language", path=str(folder)), options=msgspec.to_builtins(options)
    )
    preparer = open_preparer(spec)
    return open_engine(spec, preparer, lambda *_: None), preparer


def said(folder: Path, asked: list[str], most: int, together: int = 16) -> Iterator[Said]:
    """What the model answers each, greedily, with up to `most` tokens."""
    engine, preparer = opened(folder, together)
    waiting = iter(asked)
    while batch := list(islice(waiting, together)):
        sequences = []
        for text in batch:
            request = GenerationRequest(
                model="bench",
                messages=(Message("user", (Text(text),)),),
                sampling=Sampling(temperature=0.0),
                max_tokens=most,
            )
            prepared = preparer.prepare(str(time.monotonic_ns()), Generate(request))
            assert not isinstance(prepared, tuple)
            engine.submit(prepared)
        sequences = [request.sequences[0] for request in engine.lifecycle.live]
        while engine.busy:
            engine.step()
        for sequence in sequences:
            yield Said(list(sequence.tokens), len(sequence.request.job.prompt))
    engine.close()
