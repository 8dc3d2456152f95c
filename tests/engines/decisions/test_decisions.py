"""Decisions are those of mlx-vlm's own `predict` on a tiny random Laya, and what a model cannot read is refused."""

import json
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from pippin.catalog.info import read_info
from pippin.core.events import Decided, Failed
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Decide
from pippin.engines import decisions
from pippin.engines.blocking import BlockingEngine
from tests.engines.driving import no_progress, run
from tests.engines.language.vision.any_family import Family, write_tokenizer
from tests.running_server import running_server

QUESTIONS: dict[str, Any] = {
    "mood": {"instructions": "Which mood?", "criteria": ["happy", "angry"]},
    "why": {"instructions": "What about?", "criteria": {"bill": "money", "other": None}},
    "urgent": {"type": "bool", "instructions": "Is it urgent?"},
    "anger": {"type": "score", "instructions": "How angry?", "criteria": ["not", "a little", "very"]},
}
STATES: tuple[Any, ...] = ("Another wrong invoice! Call me.", {"subject": "invoice", "lines": ["wrong", 2]})


def tiny_laya(folder: Path) -> Path:
    """A random checkpoint in the real format, with an encoder of two layers."""
    from mlx_vlm.models.laya import Model, ModelConfig

    folder.mkdir(parents=True)
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    ids = write_tokenizer(folder, Family(tokens=tuple(named.values()), tokenizer=named, template=None), [])
    config = {
        "model_type": "laya",
        "head_layers": 1,
        "encoder_config": {
            "model_type": "modernbert",
            "vocab_size": len(ids),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "pad_token_id": ids["<|end|>"],
        },
        "decision_config": {"head_max_len": 160, "max_len": 256, "temperature": [1.0, 1.0, 1.0]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    mx.random.seed(5)
    model = Model(ModelConfig.from_dict(config))
    weights = {
        name: array + 0.3 * mx.random.normal(array.shape) for name, array in tree_flatten(model.parameters())
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    return folder


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> WorkerSpec:
    info = read_info(tiny_laya(tmp_path_factory.mktemp("models") / "laya"))
    assert info.kind == "decisions"
    return WorkerSpec(info=info)


@pytest.fixture(scope="module")
def engine(spec: WorkerSpec) -> BlockingEngine[decisions.Predict]:
    return decisions.open_engine(spec, decisions.open_preparer(spec), no_progress)


def decided(spec: WorkerSpec, engine: BlockingEngine[decisions.Predict], task: Decide) -> Any:
    job = decisions.open_preparer(spec).prepare("one", task)
    assert not isinstance(job, tuple)
    [found] = run(engine, job)["one"]
    return found


@pytest.mark.parametrize("state", STATES, ids=["text", "json"])
def test_answers_are_those_of_mlx_vlm(
    spec: WorkerSpec, engine: BlockingEngine[decisions.Predict], state: Any
) -> None:
    from mlx_vlm.decision import predict
    from mlx_vlm.utils import load

    found = decided(spec, engine, Decide(state=json.dumps(state), questions=json.dumps(QUESTIONS)))
    assert isinstance(found, Decided)
    model, processor = load(spec.info.path)
    expected = predict(model, processor, state, QUESTIONS)
    assert json.loads(found.answers) == json.loads(json.dumps(expected["answers"]))
    assert found.used_tokens == expected["usage"]["input_tokens"] > 0


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"criteria": ["one"]}, "at least 2 criteria"),
        ({"type": "multi_label", "criteria": ["x"]}, "does not support"),
        ({"criteria": ["x", "x"]}, "unique"),
    ],
)
def test_questions_that_the_model_cannot_read_are_refused(
    spec: WorkerSpec, engine: BlockingEngine[decisions.Predict], question: dict[str, Any], told: str
) -> None:
    questions = json.dumps({"a": {"instructions": "?", **question}})
    found = decided(spec, engine, Decide(state='"x"', questions=questions))
    assert isinstance(found, Failed)
    assert (found.error.kind, found.error.param) == ("invalid_request", "questions")
    assert told in found.error.message


@pytest.mark.long
def test_a_server_answers_as_mlx_vlms_server_does(spec: WorkerSpec, tmp_path: Path) -> None:
    with running_server(tmp_path, str(spec.info.path)) as address:
        body = {
            "model": "laya",
            "state": "Another wrong invoice!",
            "questions": {"urgent": {"type": "bool", "instructions": "Is it urgent?"}},
        }
        reply = httpx.post(f"{address}/v1/decisions", json=body, timeout=120)
        assert reply.status_code == 200, reply.text
        found = reply.json()
        assert (found["model"], found["answers"]["urgent"]["type"]) == ("laya", "bool")
        assert found["usage"]["input_tokens"] > 0
        for changed, named in (
            ({"images": ["https://x/y.png"]}, "images"),
            ({"questions": {}}, "questions"),
            (
                {"questions": {"a": {"type": "multi_label", "instructions": "?", "criteria": ["x"]}}},
                "questions",
            ),
            ({"questions": {"a": {"instructions": "?", "criteria": []}}}, "questions.a.criteria"),
        ):
            refused = httpx.post(f"{address}/v1/decisions", json={**body, **changed}, timeout=120)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, named)
