"""What is told of a worker that died."""

import pytest

from pippin.core.errors import ErrorKind
from pippin.runtime.workers.death import Death, Excess, MemoryAtStart, causes_in, death_report

GIB = 1 << 30
BIRTH = MemoryAtStart(free=3 * GIB, starved=0)


@pytest.mark.parametrize(
    ("status", "doing", "starved", "kind", "words"),
    [
        (-9, "loaded its weights (40 %)", True, "load_failed", "while it loaded its weights (40 %)"),
        (-9, "loaded its weights (40 %)", True, "load_failed", "about 4.5 GiB, and 3.0 GiB were free"),
        (-9, "loaded its weights", True, "load_failed", "The system ended it for lack of memory: unload"),
        (-9, "loaded its weights", False, "worker_died", "If nobody ended it by hand"),
        (-6, "loaded its weights", False, "load_failed", "signal 6, SIGABRT"),
        (-6, "loaded its weights", False, "load_failed", "log has its last words"),
        (
            3,
            "read its tokenizer",
            False,
            "load_failed",
            "while it read its tokenizer (it left with status 3)",
        ),
        (-9, None, True, "worker_died", "signal 9, SIGKILL for lack of memory. The next request starts it"),
        (-9, None, False, "worker_died", "signal 9, SIGKILL. The next request starts it"),
        (70, None, True, "worker_died", "its engine failed in a step"),
    ],
)
def test_a_death_is_told_with_its_cause_and_the_way_out(
    status: int, doing: str | None, starved: bool, kind: ErrorKind, words: str
) -> None:
    death = Death(status=status, fault=None, doing=doing, starved=starved)
    report = death_report("m", death, BIRTH, need=int(4.5 * GIB))
    assert report.kind == kind
    assert words in report.message


def test_nobody_is_accused_of_what_is_not_known() -> None:
    death = Death(status=-11, fault=None, doing="loaded its weights", starved=True)
    assert "memory:" not in death_report("m", death, BIRTH, need=GIB).message


def test_a_worker_that_took_more_than_it_may_is_told_with_both_figures() -> None:
    excess = Excess(resident=5 * GIB, limit=4 * GIB)
    death = Death(status=-9, fault=None, doing=None, starved=True, excess=excess)
    message = death_report("m", death, BIRTH, need=GIB).message
    assert (
        "it took 5.0 GiB of memory, more than the 4.0 GiB that it may take at most, and was ended" in message
    )
    assert "for lack of memory" not in message


def test_a_worker_on_another_machine_that_was_not_reached_is_told_as_such() -> None:
    death = Death(status=255, fault=None, doing="read its tokenizer", starved=False, far=True)
    report = death_report("'m' (on 10.0.0.2)", death, BIRTH, 0)
    assert report.kind == "load_failed"
    assert report.message.startswith("The model 'm' (on 10.0.0.2) could not be loaded")
    assert "was not reached (it left with status 255)" in report.message
    assert "MiB" not in report.message


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (
            "[METAL] Command buffer execution failed: Impacting Interactivity (0000000e)",
            "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1",
        ),
        ("kIOGPUCommandBufferCallbackErrorImpactingInteractivity", "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1"),
        ("[METAL] Command buffer execution failed: Insufficient Memory (00000008)", "--memory-bytes"),
        ("kIOGPUCommandBufferCallbackErrorOutOfMemory", "--memory-bytes"),
        ("[metal::malloc] Resource limit (499000) exceeded.", "--memory-bytes"),
    ],
)
def test_the_last_words_of_a_worker_tell_the_way_out(words: str, way_out: str) -> None:
    (cause,) = causes_in(words)
    for doing in (None, "loaded its weights"):
        death = Death(status=-6, fault=None, doing=doing, starved=False, cause=cause)
        assert way_out in death_report("'m'", death, BIRTH, need=GIB).message
    assert not causes_in("INFO: 3 prompts in memory")
