"""Measures the trials in 16 bits, and writes docs/measurements/sixteen-bits.md.

    python -m tests.as_on_a_mac.tables [ARCHITECTURE ...]

Rows of architectures that are not named stay as they are, so that the page can be measured piece by piece.
"""

import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.language.kv_cache import agreement, probe
from pippin.engines.language.kv_cache.probe import Batching, choose_batching
from tests.as_on_a_mac.gpu import Gpu, compute_as_a_gpu
from tests.as_on_a_mac.test_trials import (
    ALL_FAULTS,
    DEEP,
    NOISY,
    PATTERNS,
    inject,
    loaded,
)
from tests.engines.language.architectures.any_architecture import write
from tests.engines.tiny_models import ARCHITECTURES, ODD_ONES, OF_ANOTHERS_CLASS, tiny_model

PAGE: Final = Path(__file__).parents[2] / "docs" / "measurements" / "sixteen-bits.md"
TINY: Final = (*ARCHITECTURES, *OF_ANOTHERS_CLASS, *ODD_ONES)
MORE: Final = (
    *("mixtral", "phi3", "cohere2", "deepseek_v3", "falcon_h1", "kimi_linear", "nemotron_h", "olmo2"),
    *("gpt_bigcode", "granite", "glm4", "exaone4"),
)
ALL: Final = (*TINY, *MORE)
NONE: Final = "-"
LONGER: Final = (23, 9)
"""Tokens of the prompts that tell whether a fault that was not found is one of this model."""
ROW: Final = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)


class Measured:
    """The differences that trials find, each a share of the largest logit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[float] = []
        own = probe.difference

        def difference(found: mx.array, expected: mx.array) -> float:
            self.found.append(own(found, expected))
            return self.found[-1]

        monkeypatch.setattr(probe, "difference", difference)

    def tried(self, model: Any) -> tuple[Any, list[float]]:
        """How a model's sequences run together, and the differences that decided it."""
        self.found = []
        return choose_batching(model, ModelOptions()), self.found


def row(architecture: str, folder: Path) -> str:
    """What the page says of an architecture, behind its name."""
    changes = DEEP if architecture in NOISY else {}
    tiny = architecture in TINY
    model = loaded(tiny_model(architecture, folder, **changes) if tiny else write(architecture, folder))
    with pytest.MonkeyPatch.context() as patched:
        measured = Measured(patched)
        with pytest.MonkeyPatch.context() as rounding:
            compute_as_a_gpu(rounding.setattr, Gpu(rows=sys.maxsize, order=0))
            plain, _ = measured.tried(model)
        worst, failed = 0.0, 0
        for seed in range(PATTERNS):
            with pytest.MonkeyPatch.context() as rounding:
                compute_as_a_gpu(rounding.setattr, Gpu(seed=seed))
                batching, found = measured.tried(model)
            failed += way(batching) != way(plain)
            worst = max([worst, *found])
        told = NONE if plain.shape is None else _faults(model, plain, measured)
    together = "no" if plain.shape is None else "yes" if plain.rewinds else "yes, without taking back"
    return f"{together} | {failed} of {PATTERNS} | {worst:.0e} | {told}"


def _faults(model: Any, plain: Batching, measured: Measured) -> str:
    """How many of the faults that change this model's answers are found, and by how little the least of them shows."""
    least, name, found, missed = float("inf"), "", 0, []
    for fault in ALL_FAULTS:
        with pytest.MonkeyPatch.context() as patched:
            compute_as_a_gpu(patched.setattr, Gpu())
            for module in (probe, agreement):
                patched.setattr(module, "FAILURES", ())  # a fault that raises would show nothing
            inject(patched, fault)
            try:
                batching, differences = measured.tried(model)
                if way(batching) == way(plain):
                    patched.setattr(probe, "PROBE_LENGTHS", LONGER)
                    missed += [fault] if way(measured.tried(model)[0]) != way(plain) else []
                    continue
            except (ValueError, TypeError, RuntimeError):
                continue
        found += 1
        if max(differences) < least:
            least, name = max(differences), fault
    if missed:
        print("missed:", missed)
    return f"{found} of {found + len(missed)}, {least:.3f} ({name})"


def way(batching: Batching) -> tuple[bool, bool]:
    return batching.shape is None, batching.rewinds


def page(rows: dict[str, str]) -> str:
    table = "\n".join(f"| `{name}` | {rows[name]} |" for name in ALL if name in rows)
    return f"""# In 16 bits

`python -m tests.as_on_a_mac.tables` computes the trials of a load as a GPU rounds: products and attention in bfloat16,
summed in float32, in an order of their own where there are several rows. The trials themselves compute in float32,
where a right batch may differ by 0.02 of the largest logit. Random models of two to six layers; *right* is the largest
difference in {PATTERNS} patterns of rounding; *faults* were made on purpose: of {len(ALL_FAULTS)} of masks, positions,
writes, recurrent states and taking back those that change what the architecture computes, and the one that shows least.

| architecture | batches | refused by chance | right | faults found |
|---|---|---|---|---|
{table}
"""


def main(names: list[str]) -> None:
    rows = dict(ROW.findall(PAGE.read_text("utf-8"))) if PAGE.exists() else {}
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names or ALL:
            rows[name] = row(name, Path(scratch) / name)
            print(name, rows[name], flush=True)
            PAGE.write_text(page(rows), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
