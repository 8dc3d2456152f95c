"""The worst that can be done to a real server, while clients check every answer. `python -m tests.chaos --help`."""
