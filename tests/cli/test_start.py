"""How much `pippin serve` does before it answers, and before a first request is as quick as any.

CPU time, because a test cannot choose its neighbours: work that is not done takes no time on any machine.
"""

import statistics
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.cli.serving import Terminal, terminal

__all__ = ["terminal"]

HEALTHY = 5.5
"""Times the work of importing the web server alone, up to the first answer: 3.6 to 4.9 at the best of five tries. Slow
processors, and work beside it on the same core, cost both the same. Importing MLX or transformers would add 2."""
WEB_SERVER = "import sys, uvicorn, starlette.applications, msgspec; print(flush=True); sys.stdin.read()"
TRIES = 5
LOADED = 200.0  # seconds that the demo model may take on a machine that is shared
WARM = 1.6  # times the work of a later request: the memory of the warm-up was given back, and is touched anew
ONCE = 1 / 30
"""Of the work up to the end of the load: what the kernels leave of a request takes so little that times of its work,
which the machine counts in hundredths of a second, are no measure."""
QUESTIONS = ("What is in a loaf?", "Who is at the door?", "Where do birds nest?", "How old is the sea?")


def work(process: psutil.Process) -> float:
    """CPU seconds so far."""
    times = process.cpu_times()
    return times.user + times.system


def yardstick() -> float:
    """CPU seconds that importing the web server takes at this moment."""
    command = [sys.executable, "-c", WEB_SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return work(psutil.Process(process.pid))


@pytest.mark.parametrize("words", [(), ("scripted",)], ids=["alone", "with a model"])
def test_health_is_answered_after_little_more_work_than_imports(
    terminal: Terminal, words: tuple[str, ...]
) -> None:
    found = []
    for _ in range(TRIES):
        alone = yardstick()
        with terminal.serving(*words) as serving:
            assert httpx.get(f"{serving.address}/health").status_code == 200
            found.append(work(psutil.Process(serving.process.pid)) / alone)
            if found[-1] < HEALTHY:
                return
    raise AssertionError(f"it took {min(found):.2f} times the work of its imports")


@pytest.mark.model
@pytest.mark.timeout(900)
def test_the_first_request_costs_little_more_than_the_others(terminal: Terminal, demo_model: Path) -> None:
    terminal.environment["OPENBLAS_NUM_THREADS"] = "1"
    found = []
    for _ in range(TRIES):
        load, first, *others = _work_of_each(terminal, demo_model)
        later = statistics.median(others)
        if first < max(WARM * later, later + ONCE * load):
            return
        found.append(f"{first:.2f} s after {load:.1f} of loading, and later ones {later:.2f}")
    raise AssertionError(f"the first took {'; '.join(found)}")


def _work_of_each(terminal: Terminal, model: Path) -> list[float]:
    """CPU seconds of server and worker: up to the end of the load, and for each of a few requests alike."""
    with terminal.serving(str(model)) as serving:
        serving.wait_for(r"(\S+) is ready after", seconds=LOADED)
        server = psutil.Process(serving.process.pid)
        processes = [server, *server.children(recursive=True)]
        found = [sum(map(work, processes))]
        for question in QUESTIONS:
            before = sum(map(work, processes))
            # Each begins with words of its own: the later ones would find what the first left in the prefix cache.
            messages = [{"role": role, "content": question} for role in ("system", "user")]
            body = {"model": "default", "messages": messages, "max_tokens": 12, "ignore_eos": True}
            answer = httpx.post(f"{serving.address}/v1/chat/completions", json=body, timeout=LOADED)
            assert answer.json()["usage"]["completion_tokens"] == 12
            found.append(sum(map(work, processes)) - before)
    return found
