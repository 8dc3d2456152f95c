"""Each embedding model and reranker answers as transformers does, from checkpoints that it saves: see
tests/oracles/encoders.yaml. Texts are computed together, where transformers has each alone.

`PIPPIN_ORACLE_WRITE=1` writes the verdicts anew, from which docs/engine.md has its table.
"""

import itertools
import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
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
from pippin.engines.encoding import EncodingTokenizer
from pippin.engines.language.model.relatives import as_transformers_has_it
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


NOMIC = {
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 96,
    "n_layer": 3,
    "n_positions": 128,
    "layer_norm_epsilon": 0.0003,
    "head_dim": 24,
    "activation_function": "swiglu",
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_weights": True,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "prenorm": False,
    "causal": False,
    "use_rms_norm": False,
    "use_xentropy": True,
    "max_trained_positions": 2048,
}
GTE = {
    "model_type": "new",
    "position_embedding_type": "rope",
    "rope_theta": 20000,
    "rope_scaling": {"type": "ntk", "factor": 4.0},
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "logn_attention_clip1": False,
    "pack_qkv": True,
    "type_vocab_size": 0,
}
PUBLISHED = [("embeddings/nomic_bert", NOMIC, ""), ("embeddings/gte-scaled", GTE, "new.")]


def published(folder: Path, source: Path, fields: dict[str, Any], prefix: str) -> Path:
    """A copy of a checkpoint with the publisher's fields and names of arrays."""
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text("utf-8"))
    kept = {name: value for name, value in config.items() if "rope" not in name}
    if "n_embd" in fields:
        kept = {
            name: config[name] for name in ("architectures", "model_type", "vocab_size", "type_vocab_size")
        }
    (folder / "config.json").write_text(json.dumps(kept | fields))
    arrays = {prefix + name: array for name, array in mx.load(str(source / "model.safetensors")).items()}
    if fields.get("type_vocab_size") == 0:
        # What a type adds is added to each word.
        types = arrays.pop(f"{prefix}embeddings.token_type_embeddings.weight")
        arrays[f"{prefix}embeddings.word_embeddings.weight"] += types
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("name", "fields", "prefix"), PUBLISHED)
def test_files_in_the_form_of_their_publishers_are_answered_alike(
    name: str, fields: dict[str, Any], prefix: str, written: Path, tmp_path: Path
) -> None:
    folder = published(tmp_path / "model", written / name, fields, prefix)
    assert EncodingTokenizer(folder, None).limit == 128
    assert verdict(folder, vectors) == "equal"


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("nomic_bert", "num_experts", 8),
        ("nomic_bert", "rotary_scaling_factor", 2),
        ("nomic_bert", "rotary_emb_fraction", 0.5),
        ("nomic_bert", "rotary_emb_fraction", 0),
        ("nomic_bert", "scale_attn_weights", False),
        ("nomic_bert", "prenorm", True),
        ("nomic_bert", "activation_function", "gelu"),
        ("gte", "logn_attention_scale", True),
        ("new", "position_embedding_type", "absolute"),
        ("new", "layer_norm_type", "rms_norm"),
    ],
)
def test_a_field_of_a_publishers_code_that_is_not_computed_is_refused(
    kind: str, field: str, value: object
) -> None:
    fields = NOMIC if kind == "nomic_bert" else GTE
    with pytest.raises(ValueError, match=field):
        as_transformers_has_it({**fields, "model_type": kind, field: value})


@pytest.mark.long
@pytest.mark.parametrize(
    ("field", "value"), [("n_inner", None), ("n_head", 0), ("n_embd", "x"), ("rotary_emb_base", None)]
)
def test_a_size_that_is_no_number_is_a_refusal(
    field: str, value: object, written: Path, tmp_path: Path
) -> None:
    folder = published(tmp_path / "model", written / "embeddings/nomic_bert", NOMIC | {field: value}, "")
    assert verdict(folder, vectors).startswith("refused: model can't be loaded: its config.json has ")


@pytest.mark.long
def test_a_reranker_that_answers_yes_or_no_scores_as_in_transformers(written: Path) -> None:
    assert read_info(written / BY_PROMPT).kind == "reranking"
    assert verdict(written / BY_PROMPT, scores) == "equal"


def test_no_checkpoint_is_answered_in_another_way_without_a_word() -> None:
    known = json.loads(VERDICTS.read_text("utf-8"))
    assert sorted(known) == sorted(NAMES)
    assert "differs" not in known.values()
