"""What `pippin verify` tells of models that embed and rank."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pippin.core.events import Event, Ranked
from pippin.engines.verify import vectors
from tests.engines.verify.folders import report_on, write


class Embeds(vectors.Encoding):
    """A model whose vectors are those of the pooling that it is given."""

    def __init__(self, by_pooling: dict[str, Any], own: str) -> None:
        preparer = object.__new__(vectors.embeddings.EmbeddingPreparer)
        preparer.config, preparer.pooling = {"model_type": "bert"}, vectors.embeddings.Pooling((own,), ())
        super().__init__(preparer, None)  # type: ignore[arg-type]
        object.__setattr__(self, "by_pooling", by_pooling)

    def vectors(self, inputs: Sequence[str] | None = None) -> vectors.Floats:
        found: vectors.Floats = self.by_pooling[self.preparer.pooling.modes[0]]  # type: ignore[attr-defined]
        rows = [vectors.texts().index(text) for text in inputs or vectors.texts()]
        alone: vectors.Floats = found[rows] * (self.alone if inputs else 1.0)
        return alone

    alone = 1.0


def near() -> vectors.Floats:
    """Vectors of which those of a pair are the same."""
    return np.repeat(np.eye(24, dtype=np.float32), 2, axis=0)


def apart() -> vectors.Floats:
    return np.random.default_rng(1).normal(size=(48, 24)).astype(np.float32)


@pytest.mark.parametrize(
    ("mean", "cls", "codes"),
    [
        (near(), apart(), []),
        (apart() / 10, near(), ["pooling", "not-normalised"]),
        (apart(), apart(), ["vectors-chance", "not-normalised"]),
        (near() * np.arange(1, 49, dtype=np.float32)[:, None], near(), ["not-normalised"]),
    ],
)
def test_poolings_are_compared_by_what_belongs_together(mean: Any, cls: Any, codes: list[str]) -> None:
    served = Embeds({"mean": mean, "cls": cls, "lasttoken": apart()}, "mean")
    found, _ = vectors.check_embeddings(served, None)
    assert [each.code for each in found] == codes
    if "pooling" in codes:
        assert "pooling mean" in found[0].text
        assert "with cls" in found[0].text


def test_vectors_that_depend_on_the_batch_are_found() -> None:
    served = Embeds({mode: near() for mode in ("mean", "cls", "lasttoken")}, "mean")
    object.__setattr__(served, "alone", 1.2)
    [found] = vectors.check_embeddings(served, None)[0]
    assert (found.code, found.text) == (
        "batch-differs",
        "In a batch vectors are up to 0.17 away from those alone.",
    )


def test_the_vectors_of_the_model_before_it_was_quantised_are_compared() -> None:
    by_pooling = {mode: near() for mode in ("mean", "cls", "lasttoken")}
    for other, codes in (
        (near(), []),
        (near() * 2, ["vectors-differ"]),
        (near()[:, ::-1], ["vectors-differ"]),
    ):
        served, beside = Embeds(by_pooling, "mean"), Embeds({"mean": other}, "mean")
        assert [each.code for each in vectors.check_embeddings(served, beside)[0]] == codes


@pytest.mark.parametrize(
    ("first", "alone", "codes"), [(1.0, 1, []), (0.0, 1, ["ranks-chance"]), (1.0, 0.7, ["batch-differs"])]
)
def test_faults_of_a_reranker_are_found(
    first: float, alone: float, codes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers are exchanged, or depend on the batch."""
    scores = dict(enumerate((first, 0.5, 0.4, 0.3)))

    def ask(self: vectors.Encoding, tasks: list[Any]) -> list[Event]:
        together = [text for _, text in vectors.pairs()]
        if len(tasks) == 1:
            return [Ranked((alone * scores[together.index(tasks[0].documents[0].parts[0].text)],), 1)]
        return [Ranked(tuple(scores.values()), 1) for _ in tasks]

    monkeypatch.setattr(vectors.Encoding, "ask", ask)
    found, _ = vectors.check_reranker(vectors.Encoding(None, None))  # type: ignore[arg-type]
    assert [each.code for each in found] == codes


@pytest.mark.model
def test_faults_of_a_real_model_are_found(minilm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(minilm, folder)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    stored = json.loads((folder / "tokenizer.json").read_text())
    write(folder, "tokenizer.json", stored | {"normalizer": None})
    tokens, numbers = report_on(folder, "tokens", "numbers", kind="embeddings").sections
    assert "words-unknown" in {each.code for each in tokens.findings}
    assert [each.code for each in numbers.findings] == ["pooling"]
