"""llama.cpp's own HTTP server, from its Python package: what a user on a CPU would pick instead.

python llama_cpp_server.py FILE.gguf PORT THREADS
"""

import sys
import time

SLOTS = 32


def main() -> None:
    import xllamacpp  # which only its own environment has

    path, port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * 2048
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
