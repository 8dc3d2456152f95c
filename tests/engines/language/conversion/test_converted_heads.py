"""Prediction heads that a conversion keeps."""

import shutil
from pathlib import Path

import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.conversion import DRAFT_HEADS, Conversion, Quantization
from pippin.engines.language.conversion.convert import convert
from pippin.engines.language.drafters.layers import FAMILIES
from tests.engines.language.bench import Bench
from tests.engines.language.conversion.published_heads import PUBLISHED, published
from tests.engines.language.drafters.test_split_heads import PROMPTS
from tests.engines.language.drafting import drafts_of
from tests.engines.language.step.test_heads import heads_of

pytestmark = pytest.mark.usefixtures("always", "few_layers")

EIGHT = Quantization(bits=8, group_size=32)
Proposals = dict[tuple[int, ...], list[int]]
"""By the tokens of the sequence that they are for."""


def proposals(folder: Path) -> Proposals:
    bench = Bench(folder, ModelOptions(cache_block_tokens=8, num_draft_tokens=3, mtp=True))
    drafts = drafts_of(bench, heads_of(bench), PROMPTS, 24)
    return {tuple(sequence.tokens): found for sequence, found in drafts}


def converted(source: Path, target: Path, quantization: Quantization | None) -> Path:
    asked = Conversion(target=str(target), quantization=quantization, dtype=None, measure=False)
    done = convert(source, asked, lambda _: None)
    assert done.draft_arrays > 0
    return target


def pairs(first: Proposals, second: Proposals) -> list[tuple[int, int]]:
    """Tokens proposed for the same sequences by both. How long sequences are when they are asked about depends on what
    was accepted before."""
    both = [
        pair
        for tokens in first
        if tokens in second
        for pair in zip(first[tokens], second[tokens], strict=True)
    ]
    assert len(both) >= 36
    return both


@pytest.mark.parametrize("name", sorted([*PUBLISHED, *FAMILIES]))
def test_a_converted_head_proposes_what_the_published_one_does(name: str, tmp_path: Path) -> None:
    """In eight bits nearly, beside a model that is not quantised and so leaves the same states."""
    source = published(name, tmp_path / name.split(",")[0])
    before = proposals(source)
    whole = converted(source, tmp_path / "whole", None)
    assert all(first == second for first, second in pairs(before, proposals(whole)))
    packed = converted(source, tmp_path / "packed", EIGHT)
    assert proposals(packed)
    shutil.copy(packed / DRAFT_HEADS, whole)
    found = pairs(before, proposals(whole))
    assert sum(first == second for first, second in found) > 0.8 * len(found)
