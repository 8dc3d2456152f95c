"""Language models and vision-language models that embed: through the engine, and through `pippin serve`."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import msgspec
import numpy as np
import openai
import pytest

from pippin.catalog.info import read_info
from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Image, Inline, Message, Text
from pippin.core.errors import ServerError
from pippin.core.events import Embedded
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Embed
from pippin.engines import embeddings
from pippin.engines.conversations import ConversationStates
from pippin.engines.language.model.weights import load_weights
from pippin.engines.language.vision.model import VisionModel
from pippin.engines.language.vision.trial import logits_by_library
from tests.engines.driving import no_progress, run
from tests.engines.language.bench import PLAN
from tests.engines.language.vision.tiny_vision_models import FAMILIES, picture, tiny_vision_model
from tests.running_server import running_server

TEXTS = ("a red fish", "Two blue birds, and a text that is longer than the others.", "x")


def spec_of(folder: Path, **options: Any) -> WorkerSpec:
    made = msgspec.to_builtins(ModelOptions(**options))
    return WorkerSpec(info=read_info(folder, kind="embeddings"), options=made, threads=1)


def embed(folder: Path, *texts: str, **options: Any) -> np.ndarray[Any, Any]:
    spec = spec_of(folder, **options)
    preparer = embeddings.open_preparer(spec)
    engine = embeddings.open_engine(spec, preparer, no_progress)
    job = preparer.prepare("one", Embed(inputs=texts))
    assert not isinstance(job, tuple)
    [found] = run(engine, job)["one"]
    assert isinstance(found, Embedded)
    return np.frombuffer(found.vectors, "<f4").reshape(len(texts), -1)


# One of each way to keep what was computed: windows, rotary positions in three parts, states of a recurrence, neither.
QUICK = ("gemma3", "llava", "qwen2_vl", "qwen3_5")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in FAMILIES],
)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name: str = request.param
    return tiny_vision_model(name, tmp_path_factory.mktemp("models") / name)


def test_a_vision_language_model_embeds_what_its_head_reads(family: Path) -> None:
    model, _ = load_weights(read_info(family), PLAN, no_progress)
    assert isinstance(model, VisionModel)
    language = model.inner.language_model
    tokens = mx.array([list(range(1, 30)), [5] * 29])
    head = language.lm_head if "lm_head" in language else language.logits_from_hidden  # with tied embeddings
    expected = language(tokens, cache=None).logits
    assert float(mx.abs(head(model.without_head()(tokens)) - expected).max()) < 1e-4


def test_texts_are_embedded_alike_in_any_company(family: Path) -> None:
    together = embed(family, *TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(embed(family, text)[0], vector, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_a_pictures_state_is_what_the_head_reads_in_mlx_vlm(family: Path) -> None:
    preparer = embeddings.open_preparer(spec_of(family))
    model, _ = load_weights(read_info(family), PLAN, no_progress)
    assert isinstance(model, VisionModel)
    assert preparer.conversations is not None
    preparer.conversations.loaded(model)
    asked = Message("user", (Image(Inline(picture(30, 40, 2))), Text("What?")))
    sequence = preparer.conversations.sequence((asked,), "input[0]")
    assert sequence.media is not None
    states = ConversationStates(model, ModelOptions()).states(sequence)
    language = model.inner.language_model
    head = language.lm_head if "lm_head" in language else language.logits_from_hidden
    [placed] = sequence.media.placed
    expected = logits_by_library(model, sequence.tokens, placed)
    assert float(mx.abs(head(states[None])[0, -1] - expected).max()) < 1e-4


def test_poolings_that_mean_nothing_here_are_refused(tmp_path: Path) -> None:
    folder = tiny_vision_model("llava", tmp_path / "llava")
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    config = folder / "1_Pooling" / "config.json"
    config.write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    with pytest.raises(ServerError, match=r"'cls'.*1_Pooling/config.json"):
        embed(folder, "a")
    config.write_text('{"pooling_mode_mean_tokens": true}')
    mean = embed(folder, *TEXTS)
    assert np.abs(np.linalg.norm(mean, axis=1) - 1).max() > 1e-2  # its files name no normalisation


def embedded(address: str, model: str) -> np.ndarray[Any, Any]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=500) as client:
        found = client.embeddings.create(model=model, input=list(TEXTS), encoding_format="float")
        with pytest.raises(openai.BadRequestError, match="is of kind embeddings and can't generate text"):
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}])
        uri = "data:image/png;base64," + base64.b64encode(picture(8, 8)).decode()
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model=model, input="a", extra_body={"image_url": uri})
        assert "`image_url`" in caught.value.message
    return np.array([item.embedding for item in found.data])


URI = "data:image/png;base64," + base64.b64encode(picture(60, 28)).decode()


def seen(address: str, given: Any) -> np.ndarray[Any, Any]:
    """The vector of an input, or of a conversation about a picture."""
    body: dict[str, Any] = {"input": given}
    if isinstance(given, list):
        shown = {"type": "image_url", "image_url": {"url": URI}}
        body = {"messages": [{"role": "user", "content": [shown, *given]}]}
    reply = httpx.post(f"{address}/v1/embeddings", json={"model": "qwen2_5_vl", **body}, timeout=300)
    assert reply.status_code == 200, reply.text
    return np.array(reply.json()["data"][0]["embedding"])


@pytest.mark.timeout(600)  # a server of its own on a machine that is shared
def test_a_vision_language_model_is_served_for_embeddings(tmp_path: Path) -> None:
    folder = tiny_vision_model("qwen2_5_vl", tmp_path / "qwen2_5_vl")
    home = tmp_path / "home"
    home.mkdir()
    with running_server(home, str(folder), "--model-kind", "embeddings") as address:
        np.testing.assert_allclose(embedded(address, "qwen2_5_vl"), embed(folder, *TEXTS), atol=1e-5)
        first, again, asked = (
            seen(address, each) for each in ({"image": URI}, URI, [{"type": "text", "text": "?"}])
        )
        np.testing.assert_allclose(first, again, atol=1e-6)
        assert np.abs(first - asked).max() > 1e-3


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_demo_model_is_served_for_embeddings_as_mlx_openai_server_is_asked_to(
    demo_model: Path, tmp_path: Path
) -> None:
    words = ("--compat", "mlx-openai-server", "--model-path", str(demo_model), "--model-type", "embeddings")
    with running_server(tmp_path, *words) as address:
        found = embedded(address, demo_model.name)
    assert found.shape == (3, 576)
    near, far = embed(demo_model, "a crimson fish", "The stock market fell by two per cent today.")
    assert found[0] @ near > found[0] @ far
