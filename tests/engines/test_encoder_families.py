"""Tiny random encoders of several families agree with transformers, whatever they are batched with."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pippin.catalog.info import read_info
from pippin.core.conversation import Text
from pippin.core.events import Embedded, Ranked
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Embed, Rerank, RerankDocument
from pippin.engines import embeddings, reranking
from tests.engines.driving import no_progress, run
from tests.oracles.encoder_texts import PAIRS, TEXTS

pytestmark = pytest.mark.long
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = Path(os.environ.get("PIPPIN_ORACLE_PYTHON", ROOT / ".cache" / "oracle" / "bin" / "python"))
    if not python.is_file():
        pytest.fail(f"There is no {python}: make it with tests/oracles/requirements.txt.", pytrace=False)
    folder = tmp_path_factory.mktemp("encoders")
    subprocess.run([python, ROOT / "tests/oracles/encoders_oracle.py", folder], check=True)
    return folder


@pytest.mark.parametrize(
    "name",
    ["xlm-roberta-embedding", "modernbert-embedding", "qwen3-embedding", "embeddinggemma", "llama-language"],
)
def test_vectors_of_a_family_agree_with_transformers(checkpoints: Path, name: str) -> None:
    kind = "embeddings" if name == "llama-language" else None
    info = read_info(checkpoints / name, kind=kind)
    assert info.kind == "embeddings"
    spec = WorkerSpec(info=info, threads=1)
    preparer = embeddings.open_preparer(spec)
    engine = embeddings.open_engine(spec, preparer, no_progress)
    job = preparer.prepare("one", Embed(inputs=TEXTS))
    assert not isinstance(job, tuple)
    [found] = run(engine, job)["one"]
    assert isinstance(found, Embedded)
    vectors = np.frombuffer(found.vectors, "<f4").reshape(len(TEXTS), -1)
    assert np.abs(vectors - np.load(checkpoints / name / "expected.npy")).max() < 1e-5


@pytest.mark.parametrize("name", ["bert-reranker", "qwen3-reranker"])
def test_scores_of_a_reranker_agree_with_transformers(checkpoints: Path, name: str) -> None:
    info = read_info(checkpoints / name)
    assert info.kind == "reranking"
    spec = WorkerSpec(info=info, threads=1)
    preparer = reranking.open_preparer(spec)
    engine = reranking.open_engine(spec, preparer, no_progress)
    expected = np.load(checkpoints / name / "expected.npy")
    assert np.ptp(expected) > 1e-3
    for (query, document), logit in zip(PAIRS, expected, strict=True):
        asked = Rerank(query=query, documents=(RerankDocument((Text(document),)),))
        job = preparer.prepare("one", asked)
        assert not isinstance(job, tuple)
        [found] = run(engine, job)["one"]
        assert isinstance(found, Ranked)
        assert abs(found.scores[0] - 1 / (1 + np.exp(-logit))) < 2e-5
