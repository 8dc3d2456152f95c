"""Pictures for embeddings and reranking: vectors and scores equal those of mlx-vlm's own server."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image as Pictures

from pippin.catalog.info import read_info
from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Image, Inline, Message, Part, Text
from pippin.core.errors import ServerError
from pippin.core.events import Embedded, Ranked
from pippin.core.models import ModelKind, WorkerSpec
from pippin.core.tasks import Conversation, Embed, Rerank, RerankDocument
from pippin.engines import embeddings, reranking
from tests.engines.driving import no_progress, run
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.tiny_models import tiny_model

SHOWN = (picture(60, 28, 1), picture(30, 40, 2))
INPUT = "input[0]"


def spec_of(folder: Path, kind: ModelKind) -> WorkerSpec:
    made = msgspec.to_builtins(ModelOptions())
    return WorkerSpec(info=read_info(folder, kind=kind), options=made, threads=1)


def conversation(*parts: Part) -> Conversation:
    return Conversation(messages=(Message("user", parts),), field=INPUT)


def shown(data: bytes) -> Image:
    return Image(Inline(data))


class Embedder:
    def __init__(self, folder: Path) -> None:
        spec = spec_of(folder, "embeddings")
        self.preparer = embeddings.open_preparer(spec)
        self.engine = embeddings.open_engine(spec, self.preparer, no_progress)

    def vectors(self, *inputs: str | Conversation) -> np.ndarray[Any, Any]:
        job = self.preparer.prepare("one", Embed(inputs=inputs))
        assert not isinstance(job, tuple)
        [found] = run(self.engine, job)["one"]
        assert isinstance(found, Embedded)
        return np.frombuffer(found.vectors, "<f4").reshape(len(inputs), -1)


@pytest.fixture(scope="module")
def embedding_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3-VL-Embedding as mlx-vlm names it: Qwen3-VL without a head."""
    folder = tiny_vision_model("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl_embedding")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "qwen3_vl_embedding"}))
    drop_head(folder)
    return folder


def drop_head(folder: Path) -> None:
    import mlx.core as mx

    [path] = folder.glob("*.safetensors")
    weights = mx.load(str(path))
    assert isinstance(weights, dict)
    kept = {name: array for name, array in weights.items() if "lm_head" not in name}
    mx.save_safetensors(str(path), kept, {"format": "mlx"})


@pytest.fixture(scope="module")
def embedder(embedding_folder: Path) -> Embedder:
    return Embedder(embedding_folder)


def test_vectors_are_those_of_mlx_vlm(embedder: Embedder, embedding_folder: Path) -> None:
    from mlx_vlm.embedding_loader import load_embedding_model
    from mlx_vlm.server.embeddings import _embed, _embed_image
    from mlx_vlm.utils import load_processor

    model = load_embedding_model(embedding_folder)
    processor = load_processor(embedding_folder, trust_remote_code=False)
    found = embedder.vectors(*(conversation(shown(data)) for data in SHOWN), "a red fish")
    # The text first: mlx-vlm's model would give it positions of the picture before.
    expected, _ = _embed(model, processor, ["a red fish"])
    np.testing.assert_allclose(found[2], expected[0], atol=1e-5)
    for vector, data in zip(found, SHOWN, strict=False):
        expected, _ = _embed_image(model, processor, Pictures.open(io.BytesIO(data)))
        np.testing.assert_allclose(vector, expected, atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_a_conversation_is_embedded_alike_in_any_company(embedder: Embedder) -> None:
    mixed = conversation(shown(SHOWN[0]), Text("A caption."))
    alone = embedder.vectors(mixed)[0]
    together = embedder.vectors("text", mixed, conversation(shown(SHOWN[1])), mixed)
    np.testing.assert_allclose(together[1], alone, atol=1e-6)
    np.testing.assert_allclose(together[3], alone, atol=1e-6)
    np.testing.assert_allclose(together[0], embedder.vectors("text")[0], atol=1e-6)


def test_a_model_whose_head_was_taken_away_embeds_pictures(tmp_path: Path) -> None:
    """Idefics 3 has no body beside its head, which texts are embedded without."""
    found = Embedder(tiny_vision_model("idefics3", tmp_path / "idefics3"))
    one, other, text = found.vectors(*(conversation(shown(data), Text("?")) for data in SHOWN), "a red fish")
    assert one.shape == text.shape == (64,)
    assert np.abs(one - other).max() > 1e-3


def test_a_picture_is_encoded_once(embedder: Embedder) -> None:
    first = embedder.vectors(conversation(shown(SHOWN[0]), Text("One")))
    again = embedder.vectors(conversation(shown(SHOWN[0]), Text("One")))
    np.testing.assert_array_equal(first, again)


def test_capabilities_say_that_pictures_are_taken(embedder: Embedder) -> None:
    capabilities = embedder.preparer.info.capabilities
    assert capabilities is not None
    assert capabilities.images


def test_what_cannot_be_read_is_refused_by_the_inputs_name(embedder: Embedder) -> None:
    with pytest.raises(ServerError) as caught:
        embedder.preparer.prepare("one", Embed(inputs=("a", conversation(shown(b"no picture")))))
    assert caught.value.report.param == INPUT
    assert caught.value.report.message.startswith(f"'{INPUT}' is")


def test_a_model_of_text_refuses_pictures_by_the_inputs_name(tmp_path: Path) -> None:
    preparer = embeddings.open_preparer(spec_of(tiny_model("llama", tmp_path / "llama"), "embeddings"))
    with pytest.raises(ServerError, match="embeds text only") as caught:
        preparer.prepare("one", Embed(inputs=(conversation(shown(SHOWN[0])),)))
    assert caught.value.report.param == INPUT


@pytest.mark.parametrize("architecture", embeddings.NOT_COMPUTED)
def test_what_is_not_computed_is_refused_at_the_load_with_its_reason(
    architecture: str, tmp_path: Path
) -> None:
    folder = tiny_model("llama", tmp_path / "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": architecture}))
    with pytest.raises(ServerError) as caught:
        embeddings.open_preparer(spec_of(folder, "embeddings"))
    assert caught.value.report.kind == "load_failed"
    assert embeddings.NOT_COMPUTED[architecture] in caught.value.report.message


@pytest.fixture(scope="module")
def reranker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3-VL-Reranker: Qwen3-VL whose next token is `yes` or `no`, which take the places of two bytes here."""
    folder = tiny_vision_model("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3-vl-reranker")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    words = {250: "yes", 251: "no"}
    letters = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {words.get(index, letter): index for letter, index in letters.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_scores_are_those_of_mlx_vlm(reranker_folder: Path) -> None:
    from mlx_vlm.server.reranking import RerankItem, score_documents
    from mlx_vlm.utils import load

    spec = spec_of(reranker_folder, "reranking")
    preparer = reranking.open_preparer(spec)
    engine = reranking.open_engine(spec, preparer, no_progress)
    documents = (
        RerankDocument((Text("a green apple"),)),
        RerankDocument((shown(SHOWN[0]),)),
        RerankDocument((shown(SHOWN[1]), Text("a caption"))),
    )
    addresses = ["data:image/png;base64," + base64.b64encode(data).decode() for data in SHOWN]
    items = [
        RerankItem(text="a green apple"),
        RerankItem(image=addresses[0]),
        RerankItem(image=addresses[1], text="a caption"),
    ]
    model, processor = load(str(reranker_folder), trust_remote_code=False)
    config = json.loads((reranker_folder / "config.json").read_text())
    for query, media, item in (
        ("red fish", (), RerankItem(text="red fish")),
        ("", (shown(SHOWN[1]),), RerankItem(image=addresses[1])),
    ):
        job = preparer.prepare("one", Rerank(query=query, query_media=media, documents=documents))
        assert not isinstance(job, tuple)
        [found] = run(engine, job)["one"]
        assert isinstance(found, Ranked)
        expected = [score_documents(model, processor, config, item, [each], None)[0][0] for each in items]
        np.testing.assert_allclose(found.scores, expected, atol=1e-5)
        assert len({round(score, 6) for score in found.scores}) == 3
