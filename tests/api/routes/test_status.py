"""What the pages of health and status say of the models, in the replaced servers' words."""

from typing import Any

from pippin.api.routes.health import current_state
from pippin.api.routes.status import embedding_body, engine_status
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.models import ModelState


def state(name: str, kind: Any = "language", is_in: Any = "loaded", at: float = 1.0) -> ModelState:
    return ModelState(id=name, kind=kind, state=is_in, loaded_at=at)


def test_the_status_has_vllm_mlxs_words() -> None:
    assert engine_status([]) == "not_loaded"
    assert engine_status([state("a", is_in="unloaded")]) == "not_loaded"
    assert engine_status([state("a", is_in="failed")]) == "stopped"
    assert engine_status([state("a", is_in="failed"), state("b")]) == "running"


def test_the_model_of_the_status_is_the_one_that_default_means_to_a_chat() -> None:
    both = [state("a", at=1.0), state("b", at=2.0), state("embedder", "embeddings", at=3.0)]
    served = [ModelEntry(path="a"), ModelEntry(path="b")]
    assert current_state(both, served) == both[0]
    assert current_state(both, [ModelEntry(path="models/a"), ModelEntry(path="/models/b/")]) == both[0]
    assert current_state(both, [ModelEntry(path="/x", name="a"), ModelEntry(path="/a", name="b")]) == both[0]
    assert current_state(both, []) == both[1]
    assert current_state(both[2:], []) == both[2]
    assert current_state([], []) is None


def test_the_status_describes_the_embedding_model_in_memory() -> None:
    states = [state("a"), state("embedder", "embeddings")]
    options = ServerOptions(model_defaults=ModelOptions(embedding_max_length=9))
    body = embedding_body(states, options)
    assert body is not None
    assert (body["model"], body["max_length"], body["overflow_policy"]) == ("embedder", 9, "error")
    assert embedding_body(states[:1], options) is None
