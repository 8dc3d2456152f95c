"""What is told of a worker that died."""

from typing import Any

import pytest

from pippin.core.errors import ErrorKind, way_out, with_way_out
from pippin.runtime.workers.death import Death, death_report

GIB = 1 << 30


def death(needed: float = GIB, **how: Any) -> Death:
    return Death(fault=None, free=3 * GIB, needed=int(needed), **how)


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
    report = death_report("m", death(4.5 * GIB, status=status, doing=doing, starved=starved))
    assert report.kind == kind
    assert words in report.message


def test_nobody_is_accused_of_what_is_not_known() -> None:
    how = death(status=-11, doing="loaded its weights", starved=True)
    assert "memory:" not in death_report("m", how).message


def test_a_worker_that_took_more_than_it_may_is_told_with_both_figures() -> None:
    how = death(status=-9, doing=None, starved=True, excess=(5 * GIB, 4 * GIB))
    message = death_report("m", how).message
    assert (
        "it took 5.0 GiB of memory, more than the 4.0 GiB that it may take at most, and was ended" in message
    )
    assert "for lack of memory" not in message


def test_a_worker_on_another_machine_that_was_not_reached_is_told_as_such() -> None:
    how = death(status=255, doing="read its tokenizer", starved=False, far=True)
    report = death_report("'m' (on 10.0.0.2)", how)
    assert report.kind == "load_failed"
    assert report.message.startswith("The model 'm' (on 10.0.0.2) could not be loaded")
    assert "was not reached (it left with status 255)" in report.message
    assert "MiB" not in report.message


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "[METAL] Command buffer execution failed: Impacting Interactivity (0000000e)",
            "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1",
        ),
        ("kIOGPUCommandBufferCallbackErrorImpactingInteractivity", "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1"),
        ("[METAL] Command buffer execution failed: Insufficient Memory (00000008)", "--memory-bytes"),
        ("kIOGPUCommandBufferCallbackErrorOutOfMemory", "--memory-bytes"),
        ("[metal::malloc] Resource limit (499000) exceeded.", "--cache-memory-mb"),
        (
            "[metal::malloc] Attempting to allocate 9534832641 bytes which is greater than the maximum allowed buffer "
            "size of 9534832640 bytes.",
            "--prefill-step-size",
        ),
        ("[malloc] Unable to allocate 17179869184 bytes.", "--memory-bytes"),
        ("Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang).", "AGX_RELAX_CDM"),
        ("Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout).", "AGX_RELAX_CDM"),
        (
            "Innocent Victim (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)",
            "what else uses the GPU",
        ),
        ("Discarded (victim of GPU error/recovery)", "what else uses the GPU"),
        ("Ignored (for causing prior/excessive GPU errors)", "what else uses the GPU"),
        ("GPU Address Fault (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)", "another version of mlx"),
        ("[metal::Device] Unable to build metal library from source", "another version of mlx"),
        ("[metal::Device] Unable to load kernel affine_qmv_bfloat16_t_gs_64_b_4", "another version of mlx"),
        ("Failed to load the default metallib.", "another version of mlx"),
        ("cudaMallocAsync(&data, size, stream) failed: out of memory", "--memory-bytes"),
        ("cudaGraphLaunch(graph, stream) failed: an illegal memory access was encountered", "driver"),
        (
            "cuModuleLoadData(&m, b) failed: no kernel image is available for execution on the device",
            "driver",
        ),
    ],
)
def test_the_last_words_of_a_worker_tell_the_way_out(words: str, said: str) -> None:
    cause = way_out(words)
    for doing in (None, "loaded its weights"):
        how = death(status=-6, doing=doing, starved=False, cause=cause)
        assert said in death_report("'m'", how).message
    whole = with_way_out(f"The model could not be loaded: RuntimeError: {words}")
    assert said in whole
    assert with_way_out(whole) == whole, "it is said once"


@pytest.mark.parametrize(
    "words",
    ["INFO: 3 prompts in memory", "Fatal Python error: Segmentation fault", "[reshape] Cannot reshape"],
)
def test_no_way_out_is_told_of_other_words(words: str) -> None:
    assert way_out(words) is None
    assert with_way_out(words) == words
