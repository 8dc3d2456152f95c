"""What the pages of health and status say of the models, in the replaced servers' words."""

from typing import Any

from msgspec import structs

from pippin.api.routes.status import (
    available,
    current_state,
    embedding_body,
    engine_status,
    loaded_models,
    name_of_default,
    residency_body,
)
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.models import ModelInfo, ModelState


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
    told = {"embedder": ModelInfo(id="embedder", kind="embeddings", context_window=8)}
    body = embedding_body(states, options, told.get)
    assert body is not None
    assert (body["model"], body["max_length"], body["max_length_ceiling"]) == ("embedder", 8, 9)
    assert body["overflow_policy"] == "error"
    assert embedding_body(states[:1], options, told.get) is None


def test_a_model_that_is_served_and_not_in_memory_has_its_name_in_health_and_status() -> None:
    entries = (ModelEntry(path="org/embeds", kind="embeddings"), ModelEntry(path="org/writes", name="writer"))
    options = ServerOptions(models=(*entries, ModelEntry(path="org/hidden", listed=False)))
    assert name_of_default(None, options) == "writer"
    assert name_of_default(state("a"), options) == "a"
    assert name_of_default(None, ServerOptions()) is None
    assert available([state("a")], options) == ["org/embeds", "writer", "a"]
    resident = residency_body([], None, options)
    assert (resident["model_name"], resident["state"]) == ("writer", "unloaded")
    [loaded] = [residency_body([each], each, options) for each in [state("writer")]]
    assert (loaded["state"], loaded["loaded_at"]) == ("loaded", 1.0)


def test_under_mlx_vlms_profile_models_in_memory_are_named_by_its_kinds() -> None:
    old, new = state("old", at=1.0), state("new", at=1.0)
    states = [new, old, state("speaks", "speech")]
    used = [structs.replace(each, last_used=float(place)) for place, each in enumerate(states)]
    assert set(loaded_models(used, {})) == {"new", "old", "speaks"}
    by_kind = loaded_models(used, {"old": "path"}, by_kind=True)
    assert by_kind["text_generation"] == {
        "model": "old",
        "adapter": "path",
        "model_kind": "text_generation",
    }
    assert by_kind["tts"]["model"] == "speaks"
