"""What a token costs the process that passes it on: CPU time of an API process with a worker, and with a peer.

    python -m benchmarks.front_cost --model MODEL --url URL --pid PID

Streams from a scripted model whose answers are long, in several streams at once, and divides the CPU time that the
process `--pid` took by the chunks that came. Run it against a server alone, then against a front before that server.
"""

import argparse
import json
import threading
import time
import urllib.request

import psutil


def stream(url: str, model: str, words: int, found: list[int]) -> None:
    """Ask for an echo of so many words and count the chunks."""
    text = " ".join(f"w{number:03}" for number in range(words))
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "max_tokens": 100_000,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        found.append(sum(line.startswith(b"data:") for line in reply))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--pid", type=int, required=True, help="the API process that is measured")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--words", type=int, default=800)
    asked = parser.parse_args()
    process = psutil.Process(asked.pid)
    found: list[int] = []
    threads = [
        threading.Thread(target=stream, args=(asked.url, asked.model, asked.words, found))
        for _ in range(asked.streams)
    ]
    before, started = process.cpu_times(), time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after, seconds = process.cpu_times(), time.monotonic() - started
    used = after.user + after.system - before.user - before.system
    chunks = sum(found)
    each = 1000 * used / chunks
    print(f"{chunks} chunks in {seconds:.1f} s, {each:.3f} ms of CPU each ({chunks / seconds:.0f} a second)")


if __name__ == "__main__":
    main()
