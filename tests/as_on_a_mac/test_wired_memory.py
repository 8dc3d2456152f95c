"""Engines wire memory for weights that fill a Mac alone, and no library does behind their back."""

import importlib
import json
from pathlib import Path

import mlx.core as mx
import pytest

from pippin.catalog.info import read_info
from pippin.core.conversation import Message, Text
from pippin.core.events import Event, Failed
from pippin.core.models import ModelKind, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Embed, Generate, GenerateImages, Rerank, RerankDocument, Speak, Task, Transcribe
from pippin.engines import device
from tests.engines.driving import no_progress, run
from tests.engines.images.tiny_pipelines import tiny_z_image
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.speech.test_speech_models import write_model as write_speech_model
from tests.engines.speech.tiny_hearing import write_hearing_model
from tests.engines.tiny_models import tiny_model

pytestmark = pytest.mark.model
SPEECH = (Path(__file__).parents[1] / "data" / "speech.flac").read_bytes()


class Calls(list[int]):
    """The limits that were set, and the bytes of weights of which it was asked whether they are to be wired."""

    weighed: list[int]


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What `mx.set_wired_limit` was called with, where every library believes that there is Metal."""
    calls = Calls()
    calls.weighed = []
    monkeypatch.setattr(device, "wire_weights", lambda _facts, _options, size: calls.weighed.append(size))

    def record(limit: int) -> int:
        calls.append(limit)
        return 0

    found = {**mx.device_info(), "max_recommended_working_set_size": 1 << 34}
    monkeypatch.setattr(mx, "set_wired_limit", record)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda *_: found)
    monkeypatch.setattr(mx.metal, "device_info", lambda: found)
    return calls


def drive(folder: Path, kind: ModelKind, task: Task) -> list[Event]:
    """Load a model as a worker does, run one request to its end, and close the engine."""
    module = importlib.import_module(f"pippin.engines.{kind}")
    spec = WorkerSpec(info=read_info(folder, kind=kind), threads=1)
    preparer = module.open_preparer(spec)
    engine = module.open_engine(spec, preparer, no_progress)
    job = preparer.prepare("one", task)
    assert not isinstance(job, tuple), job
    events = run(engine, job)["one"]
    engine.close()
    assert not isinstance(events[-1], Failed), events[-1]
    return events


CHAT = Generate(GenerationRequest(model="tiny", messages=(Message("user", (Text("hello"),)),), max_tokens=4))


def test_libraries_do_wire_memory_where_nobody_stops_them(wired: Calls, tmp_path: Path) -> None:
    """The trap works: mlx-lm's own generation sets the limit twice, there and back."""
    from mlx_lm import load
    from mlx_lm.generate import stream_generate

    model, tokenizer = load(str(tiny_model("llama", tmp_path / "llama")))[:2]
    for _ in stream_generate(model, tokenizer, [1, 2, 3], max_tokens=2):
        pass
    assert wired == [1 << 34, 0]


def test_a_language_model_wires_nothing(wired: Calls, tmp_path: Path) -> None:
    drive(tiny_model("qwen3", tmp_path / "tiny"), "language", CHAT)
    assert wired == []


def test_a_vision_model_wires_nothing(wired: Calls, tmp_path: Path) -> None:
    drive(tiny_vision_model("qwen3_vl", tmp_path / "tiny"), "language", CHAT)
    assert wired == []


def test_an_embedding_model_wires_nothing(wired: Calls, minilm: Path, tmp_path: Path) -> None:
    drive(minilm, "embeddings", Embed(inputs=("hello",)))
    drive(tiny_model("qwen3", tmp_path / "tiny"), "embeddings", Embed(inputs=("hello",)))
    assert wired == []
    assert len(wired.weighed) == 2
    assert min(wired.weighed) > 1000


def test_a_reranker_wires_nothing(wired: Calls, tmp_path: Path) -> None:
    folder = tiny_model("qwen3", tmp_path / "tiny")
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    marker = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [
        {**marker, "id": 257 + n, "content": word} for n, word in enumerate(("yes", "no"))
    ]
    path.write_text(json.dumps(tokenizer))
    drive(folder, "reranking", Rerank(query="q", documents=(RerankDocument((Text("d"),)),)))
    assert wired == []
    assert len(wired.weighed) == 1
    assert min(wired.weighed) > 1000


def test_a_transcription_model_wires_nothing(wired: Calls, tmp_path: Path) -> None:
    """GLM-ASR's own module in mlx-audio is one of those that set the limit; Whisper's is not."""
    write_hearing_model("glmasr", tmp_path / "glmasr")
    drive(tmp_path / "glmasr", "transcription", Transcribe(audio=SPEECH, max_tokens=4))
    assert wired == []
    assert len(wired.weighed) == 1
    assert min(wired.weighed) > 1000


def test_a_speech_model_wires_nothing(wired: Calls, tmp_path: Path) -> None:
    write_speech_model(tmp_path / "soprano-tiny")
    drive(tmp_path / "soprano-tiny", "speech", Speak(text="hello", format="pcm", max_tokens=4))
    assert wired == []
    assert len(wired.weighed) == 1
    assert min(wired.weighed) > 1000


def test_an_image_model_wires_nothing(wired: Calls, tmp_path: Path) -> None:
    tiny_z_image(tmp_path / "z-image", turbo=True)
    drive(tmp_path / "z-image", "images", GenerateImages(prompt="a red fish", width=32, height=32, steps=2))
    assert wired == []
    assert len(wired.weighed) == 1
    assert min(wired.weighed) > 1000
