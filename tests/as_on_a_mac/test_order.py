"""In which order a step gives the device its work, where the device computes while the host goes on."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.language.step.engine import SETTLED, TRIED, LanguageEngine, Queueing
from tests.engines.language.bench import PLAN, Bench, watch
from tests.engines.tiny_models import TinyModels

LONG = tuple(place % 250 + 1 for place in range(100))


@pytest.fixture
def bench(tiny_models: TinyModels) -> Bench:
    return Bench(tiny_models("llama"), ModelOptions(prefix_cache=False))


def noted(engine: LanguageEngine) -> list[str]:
    """What the engine gives the device from now on."""
    found: list[str] = []

    def noting(owner: Any, name: str, word: str) -> None:
        own: Callable[..., Any] = getattr(owner, name)

        def called(*given: Any, **named: Any) -> Any:
            found.append(word)
            return own(*given, **named)

        setattr(owner, name, called)

    noting(engine.batch, "sample", "draw")
    noting(engine.batch, "forward", "pass")
    noting(engine.prefill, "compute", "chunk")
    noting(engine.batch, "read", "read")
    return found


def beside_a_prompt(bench: Bench, *, overlaps: bool) -> list[str]:
    """What a step gives the device in which a sequence decodes and a prompt is computed."""
    engine = bench.new_engine(msgspec.structs.replace(PLAN, overlaps=overlaps))
    engine.submit(bench.job("running", (1, 2, 3), 40, ignore_eos=True))
    while not engine.batch.running:
        engine.step()
    engine.submit(bench.job("prompt", LONG, 4, ignore_eos=True))
    found = noted(engine)
    engine.step()
    engine.close()
    return found


def test_a_token_does_not_wait_for_the_chunk_of_a_prompt(bench: Bench) -> None:
    assert beside_a_prompt(bench, overlaps=True) == ["draw", "chunk", "pass", "read"]


def test_a_first_token_is_drawn_in_the_step_of_its_prompt_on_a_cpu(bench: Bench) -> None:
    assert beside_a_prompt(bench, overlaps=False) == ["pass", "chunk", "draw", "read"]


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_prompt_that_is_alone_gets_its_first_token_at_once(bench: Bench, overlaps: bool) -> None:
    engine = bench.new_engine(msgspec.structs.replace(PLAN, overlaps=overlaps))
    engine.submit(bench.job("alone", (1, 2, 3), 4))
    tokens = watch(engine)
    engine.step()
    assert len(tokens["alone", 0]) == 1


def steps_of(seconds: Callable[[bool], float], steps: int) -> list[bool]:
    """How each of so many steps queues the next pass. A step's time depends on how its own was queued."""
    queueing, ways = Queueing(), [True]
    for _ in range(steps):
        own = ways[-1]
        ways.append(queueing.early)
        queueing.observe(seconds(own))
    return ways[1:]


@pytest.mark.parametrize("copies", [True, False])
def test_a_pass_is_queued_behind_the_read_where_that_takes_less_time(copies: bool) -> None:
    steps = SETTLED + SETTLED // 2
    ways = steps_of(lambda early: 0.03 if early and copies else 0.02 if early else 0.021, steps)
    assert set(ways[: SETTLED - TRIED]) == {True}
    assert set(ways[SETTLED:]) == {not copies}


def test_both_ways_are_tried_again_when_keys_and_values_have_grown() -> None:
    steps = [0]

    def seconds(early: bool) -> float:
        steps[0] += 1
        return 0.02 + (0.00003 * steps[0] if early else 0.01)

    ways = steps_of(seconds, SETTLED * 2 + 1)
    assert ways[SETTLED]
    assert not ways[-1]
