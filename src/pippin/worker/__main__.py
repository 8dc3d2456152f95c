"""Starts a worker: `python -m pippin.worker FD`, where FD is the socket to the API server."""

from pippin.worker.main import main

main()
