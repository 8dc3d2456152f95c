"""What models that write nothing compute: whether vectors or scores find the texts that belong together."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from pippin.core.conversation import Text
from pippin.core.events import Embedded, Event, Ranked
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Embed, Rerank, RerankDocument, Task
from pippin.core.verification import Finding
from pippin.engines import embeddings, reranking
from pippin.engines.encoding import EncodingEngine, Floats, unit
from pippin.engines.language.model.encoders import attends_both_ways, is_encoder
from pippin.engines.verify.findings import data, finding

DOCUMENTS: Final = 4
CHANCE: Final = 1.5
"""How many deviations pairs are nearer than other texts, at least. Of all-MiniLM-L6-v2 it is 3.4."""
BETTER: Final = 0.5  # deviations
NEAR: Final = 0.05  # of the largest number: more than 16 bits make
ALIKE: Final = 0.98
"""The mean cosine of a model's vectors and those before its quantisation, at least."""


@cache
def pairs() -> list[tuple[str, str]]:
    """Texts and what belongs to each; the next one is of the same subject and another meaning."""
    return [(one, other) for one, other in json.loads(data("pairs.json"))]


def texts() -> list[str]:
    """The texts of all pairs."""
    return [text for pair in pairs() for text in pair]


def _alone(what: str, together: Floats, alone: Floats) -> list[Finding]:
    """Compare rows of numbers that were computed together with the first of them, computed alone."""
    gap = float(np.abs(together[: len(alone)] - alone).max() / np.abs(alone).max())
    return [] if gap < NEAR else [finding("batch-differs", what=what, gap=gap)]


@dataclass(frozen=True)
class Encoding:
    """A loaded model that writes nothing, asked without a socket."""

    preparer: embeddings.EmbeddingPreparer | reranking.RerankingPreparer
    engine: EncodingEngine

    @classmethod
    def open(cls, spec: WorkerSpec) -> "Encoding":
        """Raises `ServerError("load_failed")`."""
        room: Any = embeddings if spec.info.kind == "embeddings" else reranking
        preparer = room.open_preparer(spec)
        return cls(preparer, room.open_engine(spec, preparer, lambda done, total, what: None))

    def ask(self, tasks: Sequence[Task]) -> list[Event]:
        """The answer to each task. Raises `ServerError` for one that can't be prepared."""
        found: dict[str, Event] = {}
        for number, task in enumerate(tasks):
            job = self.preparer.prepare(f"{number}", task)
            assert not isinstance(job, tuple)
            self.engine.submit(job)
        while self.engine.busy:
            found |= dict(self.engine.step())
        return [found[f"{number}"] for number in range(len(tasks))]

    def vectors(self, inputs: Sequence[str] | None = None) -> Floats:
        """The vectors [texts, dimensions] of texts, of all pairs if none are given."""
        [told] = self.ask([Embed(inputs=tuple(inputs or texts()))])
        assert isinstance(told, Embedded)
        return np.frombuffer(told.vectors, "<f4").reshape(-1, told.dimensions)


def check_embeddings(served: Encoding, other: Encoding | None) -> tuple[list[Finding], dict[str, Any]]:
    """Compare texts by their vectors, by those of other poolings, and with another model's."""
    own = served.vectors()
    found = _alone("vectors", own, np.concatenate([served.vectors([text]) for text in texts()[:DOCUMENTS]]))
    lengths = np.linalg.norm(own, axis=1)
    figures: dict[str, Any] = {"deviations that pairs are nearer": (gap := nearer(own))}
    assert isinstance(served.preparer, embeddings.EmbeddingPreparer)
    poolings = {"/".join(served.preparer.pooling.modes): gap, **_by_other_poolings(served, served.preparer)}
    best = max(poolings, key=lambda mode: poolings[mode])
    if gap < CHANCE and poolings[best] < CHANCE:
        found.append(finding("vectors-chance", gap=gap))
    elif poolings[best] > gap + BETTER:
        found.append(finding("pooling", own=next(iter(poolings)), gap=gap, best=best, other=poolings[best]))
    if np.ptp(lengths) > 0.01:
        found.append(finding("not-normalised", least=lengths.min(), most=lengths.max()))
    if other is not None and (theirs := other.vectors()).shape == own.shape:
        cosine = figures["mean cosine to the other's"] = float(
            np.mean(np.sum(unit(own) * unit(theirs), axis=1))
        )
        longer = float(np.mean(lengths) / np.mean(np.linalg.norm(theirs, axis=1)))
        if cosine < ALIKE or not ALIKE < longer < 1 / ALIKE:
            found.append(finding("vectors-differ", cosine=cosine, longer=longer))
    return found, figures


def check_reranker(served: Encoding) -> tuple[list[Finding], dict[str, Any]]:
    """Whether the text that belongs to a query gets the highest score of a few."""
    shown = pairs()[: 2 * DOCUMENTS]
    documents = [
        [shown[(place + step) % len(shown)][1] for step in range(DOCUMENTS)] for place in range(len(shown))
    ]
    tasks = [
        Rerank(query=query, documents=tuple(RerankDocument((Text(each),)) for each in texts))
        for (query, _), texts in zip(shown, documents, strict=True)
    ]
    ranked = _scores(served, tasks)
    first = [replace(tasks[0], documents=(each,)) for each in tasks[0].documents]
    alone = np.array([_scores(served, [task])[0][0] for task in first])
    share = sum(scores[0] == max(scores) for scores in ranked) / len(ranked)
    found = _alone("scores", np.array(ranked[0]), alone)
    found += [] if share > 2 / DOCUMENTS else [finding("ranks-chance", share=share)]
    return found, {"queries whose text is first": share}


def _scores(served: Encoding, tasks: list[Rerank]) -> list[tuple[float, ...]]:
    return [told.scores for told in served.ask(tasks) if isinstance(told, Ranked)]


def nearer(vectors: Floats) -> float:
    """Tell by how many deviations of all cosines the texts of a pair are nearer than the mean."""
    cosines = unit(vectors)[::2] @ unit(vectors)[1::2].T
    return float((np.diag(cosines).mean() - cosines.mean()) / max(cosines.std(), 1e-6))


def _by_other_poolings(served: Encoding, preparer: embeddings.EmbeddingPreparer) -> dict[str, float]:
    own, found = preparer.pooling, {}
    # In other models the first token attends to nothing but itself.
    first = is_encoder(preparer.config) or attends_both_ways(preparer.config)
    others = {"mean", "lasttoken", *(("cls",) if first else ())} - {*own.modes}
    for mode in sorted(others) if len(own.modes) == 1 else ():
        preparer.pooling = replace(own, modes=(mode,))
        found[mode] = nearer(served.vectors())
    preparer.pooling = own
    return found
