"""Defaults of requests: who wins, and who is named for it."""

import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.core.requests import GenerationRequest, Sampling, Thinking
from pippin.service.service import Setting, explain_sampling, merge_sampling, with_defaults, with_manner

CHECKPOINT = ModelInfo(id="m", kind="language", sampling=Sampling(temperature=0.6, top_k=20, top_p=0.95))


def test_the_request_wins_then_model_server_checkpoint_and_pippin() -> None:
    server = ModelOptions(top_p=0.8, min_p=0.1)
    model = ModelOptions(top_p=0.8, min_p=0.2)
    settings = explain_sampling(Sampling(seed=5), model, server, CHECKPOINT)
    assert settings == [
        Setting("temperature", 0.6, "checkpoint"),
        Setting("top_p", 0.8, "server option"),
        Setting("top_k", 20, "checkpoint"),
        Setting("min_p", 0.2, "model option"),
        Setting("seed", 5, "request"),
    ]


def test_a_zero_that_was_asked_for_is_kept() -> None:
    merged = merge_sampling(Sampling(temperature=0.0, top_k=0), ModelOptions(temperature=0.9), CHECKPOINT)
    assert (merged.temperature, merged.top_k) == (0.0, 0)


def test_a_seed_is_never_fixed_by_default() -> None:
    bare = ModelInfo(id="m", kind="language")
    assert merge_sampling(Sampling(), ModelOptions(), bare) == Sampling(temperature=1.0)


def test_contexts_of_penalties_have_their_option() -> None:
    merged = merge_sampling(Sampling(), ModelOptions(repetition_context_size=64), CHECKPOINT)
    assert merged.repetition_context == 64


@pytest.mark.parametrize(
    ("options", "asked", "given"),
    [
        (ModelOptions(), None, None),
        (ModelOptions(max_tokens=100), None, 100),
        (ModelOptions(max_tokens=100, max_request_tokens=50), None, 50),
        (ModelOptions(max_tokens=10, max_request_tokens=50), 40, 40),
    ],
)
def test_new_tokens_have_a_default_and_a_ceiling(
    options: ModelOptions, asked: int | None, given: int | None
) -> None:
    request = GenerationRequest(model="m", prompt="x", max_tokens=asked)
    assert with_defaults(request, options, CHECKPOINT).max_tokens == given


def test_more_new_tokens_than_allowed_are_refused_by_name() -> None:
    request = GenerationRequest(model="m", prompt="x", max_tokens=51)
    with pytest.raises(ServerError) as refused:
        with_defaults(request, ModelOptions(max_request_tokens=50), CHECKPOINT)
    assert refused.value.report.param == "max_tokens"


def test_a_length_that_an_api_makes_its_clients_name_is_cut_to_the_limit() -> None:
    request = GenerationRequest(model="m", prompt="x", max_tokens=64_000, cut_max_tokens=True)
    assert with_defaults(request, ModelOptions(max_request_tokens=50), CHECKPOINT).max_tokens == 50


def test_thinking_overflow_and_loops_are_the_models_where_the_request_says_nothing() -> None:
    options = ModelOptions(
        enable_thinking=True, thinking_budget=9, thinking_end_token="</t>", overflow="truncate"
    )
    free = with_manner(GenerationRequest(model="m", prompt="x"), options)
    assert free.thinking == Thinking(enabled=True, budget=9, end_marker="</t>")
    assert (free.overflow, free.loop_guard) == ("truncate", "stop")
    asked = GenerationRequest(
        model="m",
        prompt="x",
        thinking=Thinking(enabled=False, budget=0, end_marker="<"),
        overflow="error",
        loop_guard="off",
    )
    assert with_manner(asked, options) == asked


def test_a_profiles_sampling_ranks_below_the_checkpoints_own() -> None:
    options = ModelOptions(fallbacks=Sampling(temperature=0.7, min_p=0.05))
    merged = merge_sampling(Sampling(), options, CHECKPOINT)
    assert (merged.temperature, merged.min_p) == (0.6, 0.05)
    assert merge_sampling(Sampling(), options, ModelInfo(id="m", kind="language")).temperature == 0.7
    assert Setting("min_p", 0.05, "profile") in explain_sampling(Sampling(), options, options, CHECKPOINT)


@pytest.mark.parametrize(
    ("asked", "operator", "expected"),
    [(None, None, False), (None, True, True), (True, False, True), (False, True, False)],
)
def test_an_api_that_thinks_only_when_asked_follows_the_operator(
    asked: bool | None, operator: bool | None, expected: bool
) -> None:
    request = GenerationRequest(model="m", thinking=Thinking(enabled=asked, off_by_default=True))
    assert with_manner(request, ModelOptions(enable_thinking=operator)).thinking.enabled is expected
