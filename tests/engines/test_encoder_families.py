"""Each embedding model and reranker answers as transformers does, from checkpoints that it saves: see
tests/oracles/encoders.yaml. Texts are computed together, where transformers has each alone.

`PIPPIN_ORACLE_WRITE=1` writes the verdicts anew, from which docs/engine.md has its table.
"""

import itertools
import json
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from pippin.catalog.info import read_info
from pippin.core.conversation import Text
from pippin.core.errors import ServerError
from pippin.core.events import Embedded, Ranked
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Embed, Rerank, RerankDocument
from pippin.engines import embeddings, reranking
from tests.engines.driving import no_progress, run
from tests.oracles.encoder_texts import PAIRS, TEXTS

# The first test of all writes the checkpoints.
pytestmark = pytest.mark.timeout(600)
ORACLES = Path(__file__).parents[1] / "oracles"
VERDICTS = ORACLES / "encoder_verdicts.json"
SETTINGS = yaml.safe_load((ORACLES / "encoders.yaml").read_text("utf-8"))
NAMES = [f"{kind}/{name}" for kind in ("embeddings", "rerankers") for name in SETTINGS[kind]]
BY_PROMPT = "rerankers/qwen3-reranker"
CLOSE = 1e-4  # of the spread of what is expected


@pytest.fixture(scope="module")
def written(oracle_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all checkpoints and what transformers answers."""
    folder = Path(os.environ.get("PIPPIN_ENCODERS_FOLDER", tmp_path_factory.mktemp("encoders")))
    if not any(folder.iterdir()):
        subprocess.run([oracle_python, ORACLES / "encoders_oracle.py", folder], check=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, str]]:
    """What is known; what is found anew is kept if it is asked for."""
    found = json.loads(VERDICTS.read_text("utf-8")) if VERDICTS.exists() else {}
    yield found
    if os.environ.get("PIPPIN_ORACLE_WRITE"):
        kept = {name: found[name] for name in sorted(found) if name in NAMES}
        VERDICTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")


def vectors(folder: Path, **options: Any) -> npt.NDArray[np.float32]:
    spec = WorkerSpec(info=read_info(folder, kind="embeddings"), threads=1, options=options)
    preparer = embeddings.open_preparer(spec)
    engine = embeddings.open_engine(spec, preparer, no_progress)
    job = preparer.prepare("one", Embed(inputs=TEXTS))
    assert not isinstance(job, tuple)
    [found] = run(engine, job)["one"]
    assert isinstance(found, Embedded)
    return np.frombuffer(found.vectors, "<f4").reshape(len(TEXTS), -1)


def scores(folder: Path, **options: Any) -> npt.NDArray[np.float64]:
    spec = WorkerSpec(info=read_info(folder, kind="reranking"), threads=1, options=options)
    preparer = reranking.open_preparer(spec)
    engine = reranking.open_engine(spec, preparer, no_progress)
    logits: list[float] = []
    for query, pairs in itertools.groupby(PAIRS, key=lambda pair: pair[0]):
        documents = tuple(RerankDocument((Text(document),)) for _, document in pairs)
        job = preparer.prepare("one", Rerank(query=query, documents=documents))
        assert not isinstance(job, tuple)
        [found] = run(engine, job)["one"]
        assert isinstance(found, Ranked)
        logits += [math.log(score / (1 - score)) for score in found.scores]
    return np.array(logits)


def verdict(folder: Path, answer: Callable[..., Any]) -> str:
    """Whether a folder's model answers as transformers does, with the kernels for CPUs, if there are, and without."""
    if not (folder / "expected.npy").exists():
        return "transformers fails"
    expected = np.load(folder / "expected.npy")
    assert np.ptp(expected, axis=0).max() > 1e-3
    try:
        found = [answer(folder, cpu_kernels=kernels) for kernels in ("auto", "off")]
    except ServerError as error:
        return f"refused: {error.report.message}"
    close = all(
        each.shape == expected.shape and np.abs(each - expected).max() < CLOSE * expected.std()
        for each in found
    )
    return "equal" if close else "differs"


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_of_transformers_is_answered_as_the_table_says(
    name: str, written: Path, verdicts: dict[str, str]
) -> None:
    own = verdict(written / name, vectors if name.startswith("embeddings/") else scores)
    if os.environ.get("PIPPIN_ORACLE_WRITE"):
        verdicts[name] = own
    assert own == verdicts[name]


@pytest.mark.long
def test_a_reranker_that_answers_yes_or_no_scores_as_in_transformers(written: Path) -> None:
    assert read_info(written / BY_PROMPT).kind == "reranking"
    assert verdict(written / BY_PROMPT, scores) == "equal"


def test_no_checkpoint_is_answered_in_another_way_without_a_word() -> None:
    known = json.loads(VERDICTS.read_text("utf-8"))
    assert sorted(known) == sorted(NAMES)
    assert "differs" not in known.values()
