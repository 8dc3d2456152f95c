"""What the tests of the language engine's parts share."""

import pytest

from pippin.engines.language import loading
from tests.engines.language.bench import Eager


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculate in every step, whether it pays or not."""
    monkeypatch.setattr(loading, "Pace", Eager)
