"""Fixtures that several rooms share: the weights of small models, and the real clients."""

import contextlib
import faulthandler
import gc
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.cpu.blas import accelerate_blas
from tests import fast
from tests.homes import SHARED

if TYPE_CHECKING:  # most tests have no use for them, and they take a second to import
    from anthropic import Anthropic
    from openai import OpenAI

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for what tests start, too
accelerate_blas(
    ModelOptions(), threads=1
)  # before any test imports mlx; two threads on a shared machine are slower

# MLX hands its operations one by one to a thread. Where the thread that is woken takes the processor at once, two
# threads take turns half a million times in ten seconds, and a fifth of the time goes into that. A batch process's
# threads wait for their turn. What tests start inherits it.
if hasattr(os, "SCHED_BATCH"):  # Linux has it
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

# What Pippin keeps between two starts is this run's alone, not the user's.
KEPT = tempfile.TemporaryDirectory(prefix="pippin-home-", ignore_cleanup_errors=True)
os.environ["PIPPIN_HOME"] = KEPT.name
os.environ.setdefault(
    SHARED, str(Path(KEPT.name, "of-servers"))
)  # the processes of `-n` have it of the first

# Of tests that say nothing else. No example has a deadline: a machine that is shared may be late.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("fast", deadline=None, max_examples=5)  # with `--fast`
settings.register_profile("thorough", deadline=None, max_examples=200)  # with `make test-all`
settings.load_profile("quick")

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
DEMO_NAME = "smollm2-135m-instruct"
TOGETHER = {
    "tests/page/": "pages",
    "tests/test_architecture": "source",
    "tests/test_words": "source",
    "tests/api/dialects/test_golden_frames": "vendors",
    "tests/api/dialects/test_streams": "vendors",
    "tests/api/dialects/test_anthropic": "vendors",
    "tests/api/clients/gemini/": "vendors",
}
"""Files that share a browser and servers, the parsed source, or vendors' types, which take seconds to import, by how
their names begin."""
FIRST = (
    "tests/page/",
    "tests/engines/language/step/",
    "tests/test_architecture",
    "tests/test_words",
    "tests/output/test_grammars",
    "tests/output/test_wire",
)
"""What takes longest, by how their names begin: nothing of it is left where a process has nothing else to do."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast", action="store_true", help="No model, no socket, no process: less than a minute."
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    config = session.config
    starts_others = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if config.getoption("--fast") and not starts_others:
        settings.load_profile("fast")
        fast.forbid()
    # What is imported stays. A full collection of garbage, of which every load of a model makes one, would look through
    # its millions of objects for half a second.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_module = config.getoption("--fast") and collection_path.suffix == ".py"
    return True if is_module and fast.left_out(collection_path) else None


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") and not (config.getoption("xmlpath") or config.getoption("durations")):
        say_less(config)


def say_less(config: pytest.Config) -> None:
    """Of a test that passes, a process of `-n` sends the call's report alone. That it begins, is set up and torn down
    takes as long to send and to read as many a test takes."""
    # Its class is not xdist's own: the source was sent to this process.
    [found] = (
        each for each in config.pluginmanager.get_plugins() if type(each).__name__ == "WorkerInteractor"
    )
    send = found.sendevent

    def sending(name: str, **what: Any) -> None:
        report = what.get("data", {})
        around = name == "testreport" and report["when"] != "call" and report["outcome"] == "passed"
        if not around and name != "logstart":
            send(name, **what)

    found.sendevent = sending


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """With `--dist loadfile` the files that share something dear go to one process, too."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = (name for begin, name in TOGETHER.items() if nodeid.startswith(begin))
            return next(shared, None) or str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest goes first, so that no process ends long after the others."""
    items.sort(
        key=lambda item: next((n for n, name in enumerate(FIRST) if item.nodeid.startswith(name)), len(FIRST))
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    end_with_process(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    end_with_process(item)  # once more: pytest disarms it where a test fails


def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    node.config.stash[ENDS] = 0.0


def pytest_sessionfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


ENDS = pytest.StashKey[float]()
"""When the process ends, on the monotonic clock, unless that is put off; zero where nothing would end it."""
SLACK = 20.0  # seconds


def end_with_process(item: pytest.Item) -> None:
    """Bound a test that outlives the signal of its time limit, in C or in a wait of its fixtures: it ends with its
    process, whose threads are printed. A run with `-n` goes on, and reports that test as failed."""
    marker = item.get_closest_marker("timeout")
    seconds = (marker.args[0] if marker else item.config.getoption("timeout")) + 60
    stash = item.config.stash
    # Each time that it is put off, a thread ends and another starts. For each test that would take longer than many do.
    if not 0 <= stash.get(ENDS, 0.0) - time.monotonic() - seconds <= SLACK:
        stash[ENDS] = time.monotonic() + seconds + SLACK
        faulthandler.dump_traceback_later(seconds + SLACK, file=stash[fault_handler_stderr_fd_key], exit=True)


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """The levels of the log, which are the process's, stay as they were before the test."""
    loggers = (logging.getLogger(), logging.getLogger("pippin"))
    before = [each.level for each in loggers]
    yield
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)


@pytest.fixture(scope="session")
def demo_gguf(pytestconfig: pytest.Config) -> Path:
    """SmolLM2-135M-Instruct as GGUF: `PIPPIN_DEMO_GGUF`, or what `make demo` fetched."""
    if pytestconfig.getoption("--fast"):
        pytest.skip("needs a model, which the fast run has not")
    named = os.environ.get("PIPPIN_DEMO_GGUF")
    path = Path(named) if named else CACHE / "demo" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.fail(
            f"The demo model's weights are not at {path}. Fetch them with `make demo`.", pytrace=False
        )
    return path


@pytest.fixture(scope="session")
def demo_model(demo_gguf: Path) -> Path:
    """The demo model as an MLX folder, imported once for each state of the importer's code."""
    from pippin.catalog.gguf import import_gguf

    folder = CACHE / "models" / _importer_version() / DEMO_NAME
    if not folder.exists():
        try:
            import_gguf(demo_gguf, folder.parent, DEMO_NAME)
        except ServerError as error:
            if error.report.kind != "conflict":  # another test run was quicker
                raise
    return folder


def fetched(name: str) -> Path:
    """The folder of a small real model that `scripts/fetch_test_models.py` fetches."""
    folder = CACHE / name
    if not folder.is_dir():
        pytest.fail(
            f"{name} is not at {folder}. Fetch it with `python scripts/fetch_test_models.py`.", pytrace=False
        )
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2 in sentence-transformers' layout."""
    return fetched("all-minilm-l6-v2")


@pytest.fixture(scope="session")
def whisper_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whisper base in the form that mlx-audio reads."""
    from tests.oracles.whisper_from_ctranslate2 import convert

    folder = tmp_path_factory.mktemp("models") / "whisper-base"
    convert(fetched("faster-whisper-base"), folder)
    return folder


@pytest.fixture(scope="module")
def openai_client(address: str) -> "Iterator[OpenAI]":
    """A client of the module's own server, whose `address` is a fixture of the module's."""
    from tests.clients import openai_of

    with openai_of(address) as made:
        yield made


@pytest.fixture(scope="module")
def anthropic_client(address: str) -> "Iterator[Anthropic]":
    from tests.clients import anthropic_of

    with anthropic_of(address) as made:
        yield made


@pytest.fixture(scope="session")
def oracle_python() -> Path:
    """The Python of an environment with tests/oracles/requirements.txt."""
    path = Path(os.environ.get("PIPPIN_ORACLE_PYTHON", CACHE / "oracle" / "bin" / "python"))
    if not path.is_file():
        pytest.fail(
            f"There is no {path}: make it with tests/oracles/requirements.txt installed.", pytrace=False
        )
    return path


def _importer_version() -> str:
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src/pippin/catalog/gguf").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
