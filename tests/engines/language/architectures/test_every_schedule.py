"""Random schedules with proposals on each architecture of mlx-lm that takes tokens back.

`PIPPIN_SCHEDULES=50 pytest -m long -s tests/engines/language/architectures/test_every_schedule.py` plays 50 of each;
`step/test_schedules.py` plays more, with all traits, on the architectures that stand for a kind of cache.
"""

import os
import time
from pathlib import Path

import pytest

from tests.engines.language.architectures.any_architecture import write
from tests.engines.language.architectures.table import WITH_PROPOSALS, told
from tests.engines.language.schedule_run import Subject
from tests.engines.language.schedules import KNOWN
from tests.engines.language.step.test_schedules import play, play_many

COUNT = int(os.environ.get("PIPPIN_SCHEDULES", "10"))
SEED = os.environ.get("PIPPIN_SCHEDULES_SEED", str(time.time_ns()))
TRAITS = [{"proposals": "known"}, {"proposals": "prompt_lookup"}]


@pytest.mark.long
@pytest.mark.timeout(max(1800, 20 * COUNT))
@pytest.mark.parametrize(
    "architecture", [name for name, way in told().items() if way.endswith(WITH_PROPOSALS)]
)
def test_schedules_with_proposals_change_no_answer(architecture: str, tmp_path: Path) -> None:
    subject = Subject(write(architecture, tmp_path / architecture))
    play(subject, KNOWN)
    play_many(subject, TRAITS, COUNT, SEED)
    print(f"\n{architecture}: {dict(subject.tally)}")
    assert 0 < subject.tally["accepted"] < subject.tally["proposed"]
