"""A process of its own that asks for `/health` again and again, and prints how long each answer took.

Beside each it measures how late it was itself woken: on a busy machine a slow answer may be its own fault.
Lines are `seconds-since-start milliseconds own-lateness-milliseconds`, milliseconds -1 where nobody answered.
"""

import socket
import sys
import time

INTERVAL = 0.05
REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def ask(port: int) -> float:
    began = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(REQUEST)
            if not connection.recv(64).startswith(b"HTTP/1.1 200"):
                return -1.0
    except OSError:
        return -1.0
    return (time.perf_counter() - began) * 1000


def main() -> None:
    port = int(sys.argv[1])
    while True:
        before = time.perf_counter()
        time.sleep(INTERVAL)
        late = (time.perf_counter() - before - INTERVAL) * 1000
        at = time.monotonic()
        print(f"{at:.3f} {ask(port):.2f} {late:.2f}", flush=True)


if __name__ == "__main__":
    main()
