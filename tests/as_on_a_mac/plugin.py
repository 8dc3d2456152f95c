"""`pytest -p tests.as_on_a_mac.plugin tests/engines/language/step`: these tests as on a Mac.

`--mac 64` chooses the GB of its memory, and `--form 4bit` what its checkpoints are. Tests that ask for equal answers of
two ways of computing are marked `even`, or run with `--even`: one row is rounded as several are. Those marked `float32`
are left out.
"""

import os
from pathlib import Path
from typing import Any, Final

import pytest

CHOSEN: Final = "PIPPIN_TEST_MAC"  # as `mac.CHOSEN`, whose module imports mlx: too early here
LEFT_OUT: Final = ("tests/engines/cpu", "tests/engines/language/kernels", "tests/as_on_a_mac")
"""What is about CPUs, and the tests of this emulation itself."""
ROUNDED_APART: Final = (
    # An index chooses other tokens, or a mixture other experts, so that a whole answer turns: mlx-lm's own logits in 16
    # bits are as far from those in float32.
    "test_prompt_lookup_gives_the_models_own_answer[deepseek_v32]",
    "test_whatever_can_happen_changes_no_answer[deepseek_v32]",
    "test_a_schedule_does_not_change_the_answers[deepseek_v32]",
    "test_a_draft_model_reads_what_sequences_say_whatever_happens_to_them[deepseek_v32]",
    *(
        f"test_an_architecture_runs_as_the_table_says_and_answers_as_mlx_lm_does[{name}]"
        for name in ("deepseek_v32", "kimi_linear", "longcat_flash_ngram")
    ),
    # Layers compute several tokens otherwise than one by one, and random heads have many ties.
    "test_prompt_lookup_gives_the_models_own_answer[bailing_hybrid]",
    "test_a_draft_model_reads_what_sequences_say_whatever_happens_to_them[mamba2]",
    "test_it_proposes_what_mlx_vlm_drafts[False-mtp, nemotron]",
    "test_it_proposes_what_mlx_vlm_drafts[True-mtp]",
    "test_seeded_sampling_is_the_same_with_and_without[mtp]",
    "test_answers_are_those_of_plain_steps[gemma3_text-False-with logprobs]",
    "test_a_schedule_does_not_change_the_answers[gemma3_text]",
)
"""Tests that are left out too, with those that are marked `float32`, since rounding is taken to fail them. It was
measured for `deepseek_v32`, `kimi_linear` and `longcat_flash_ngram`; of the others nobody knows that the engine has no
part in it."""
GPU: Final = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mac", default="16", choices=("16", "64", "128"), help="GB of the Mac's memory")
    forms = ("bfloat16", "4bit", "mxfp4", "mixed")
    parser.addoption("--form", default="bfloat16", choices=forms, help="what its checkpoints are stored in")
    parser.addoption("--even", action="store_true", help="round one row as several")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """After `tests/conftest.py`, which chooses the BLAS."""
    even = "even" if config.getoption("--even") else ""
    os.environ[CHOSEN] = f"{config.getoption('--mac')} {config.getoption('--form')} {even}"
    from tests.as_on_a_mac.mac import chosen_mac
    from tests.as_on_a_mac.process import take

    mac = chosen_mac()
    assert mac is not None
    config.stash[GPU] = take(mac)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    place = collection_path.relative_to(config.rootpath).as_posix()
    return True if place.startswith(LEFT_OUT) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [
        each for each in items if each.get_closest_marker("float32") is not None or each.name in ROUNDED_APART
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [each for each in items if each not in left_out]


@pytest.fixture(autouse=True)
def own_rounding(request: pytest.FixtureRequest) -> None:
    """Each test's rounding is its own, whatever ran before."""
    even = request.config.getoption("--even") or request.node.get_closest_marker("even") is not None
    request.config.stash[GPU].begin(even=even)
