"""llama.cpp's own HTTP server, from its Python package: what a user on a CPU would pick instead.

python llama_cpp_server.py FILE.gguf PORT
"""

import sys
import time

import xllamacpp


def main() -> None:
    path, port = sys.argv[1], int(sys.argv[2])
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = 32
    params.n_ctx = 32 * 2048
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
