"""Asks the demo model for one streamed chat completion, and tells which files of Pippin its way goes through.

`make demo`, then `python -m scripts.trace_request [--files]`. Server and worker are those of `pippin serve`; the
module `sitecustomize` beside this one records the lines that they execute from the moment in which the request is sent
until its last byte has come. The first request warms both up and is not counted. Neither are lines that both execute
while nobody asks, or for one of two requests alone: they belong to watchers, which look at memory and processes from
time to time, or write down what was used.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEMO = "smollm2-135m-instruct"
BODY = {
    "model": "default",
    "messages": [{"role": "user", "content": "Say hello to the reader, in one sentence."}],
    "stream": True,
    "max_tokens": 16,
}
SECONDS = 300.0  # for the server to become ready: it runs many times slower than untraced
SETTLE = 0.5  # seconds in which each process sees that recording begins or ends
IDLE = 3.0  # seconds without a request, in which each watcher looks at least once

Lines = dict[str, set[int]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.trace_request", description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of the model; the demo model if not set")
    parser.add_argument("--files", action="store_true", help="name each file with the lines executed in it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        lines = trace(options.model or demo_model(), Path(home))
    print(table(lines, each_file=options.files))


def demo_model() -> Path:
    found = sorted((ROOT / ".cache" / "models").glob(f"*/{DEMO}"))
    if not found:
        sys.exit("The demo model is not here; fetch it with `make demo`.")
    return found[0]


def trace(model: Path, home: Path) -> Lines:
    """The lines that both processes execute for one request, by file."""
    with traced_server(model, home) as address:
        ask(address)
        time.sleep(IDLE)  # until nothing of that request is left to do
        idle = recorded(home, lambda: time.sleep(IDLE))
        first, second = (recorded(home, lambda: ask(address)) for _ in range(2))
        lines = {
            name: (numbers & second.get(name, set())) - idle.get(name, set())
            for name, numbers in first.items()
        }
        return {name: numbers for name, numbers in lines.items() if numbers}


def recorded(home: Path, act: Callable[[], None]) -> Lines:
    """The lines that both processes execute meanwhile."""
    recording = home / "recording"
    recording.touch()
    time.sleep(SETTLE)
    act()
    time.sleep(SETTLE)  # what follows the last byte belongs to the request, such as its line in the log
    recording.unlink()
    time.sleep(SETTLE)
    lines: Lines = {}
    for written in home.glob("*.json"):
        for name, numbers in json.loads(written.read_text()).items():
            lines.setdefault(name, set()).update(numbers)
        written.unlink()
    return lines


@contextlib.contextmanager
def traced_server(model: Path, home: Path) -> Iterator[str]:
    """The address of a server whose processes are traced; `home` is its empty home."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT / "src")]),
        "PIPPIN_TRACE_FOLDER": str(home),
        "PIPPIN_WORKER_VARIABLES": "PIPPIN_TRACE_FOLDER",  # else workers would not get it
    }
    output = home / "server.log"
    command = [sys.executable, "-m", "pippin", "serve", str(model), "--port", "0"]
    with output.open("w") as file:
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield address_of(process, output)
    finally:
        process.terminate()
        process.wait()


def address_of(process: subprocess.Popen[bytes], output: Path) -> str:
    """Where the server answers, once its model is loaded."""
    deadline = time.monotonic() + SECONDS
    while "is ready after" not in (text := output.read_text()):
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"The server did not become ready:\n{text}")
        time.sleep(0.1)
    found = re.search(r"serves at (http://\S+)", text)
    assert found is not None
    return found[1]


def ask(address: str) -> None:
    """Send the request, and read its answer to the last byte."""
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=SECONDS)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(BODY), headers)
        answer = connection.getresponse().read()
    assert answer.endswith(b"data: [DONE]\n\n"), answer[-400:]


def table(lines: Lines, *, each_file: bool) -> str:
    """Files and lines of each room, and of all together."""
    files, counts = Counter(map(room_of, lines)), Counter[str]()
    for name, numbers in lines.items():
        counts[room_of(name)] += len(numbers)
    rows = [f"{'room':<28}{'files':>6}{'lines':>7}"]
    rows += [f"{room:<28}{files[room]:>6}{counts[room]:>7}" for room in sorted(files)]
    rows.append(f"{'together':<28}{files.total():>6}{counts.total():>7}")
    if each_file:
        rows += ["", *(f"{len(lines[name]):>5}  {name}" for name in sorted(lines))]
    return "\n".join(rows)


def room_of(name: str) -> str:
    """`api/dialects`, `engines/language`, and so on: two folders at most."""
    return "/".join(Path(name).parent.parts[:2]) or "pippin"


main()
