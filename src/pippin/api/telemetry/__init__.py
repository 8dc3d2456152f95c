"""How requests and engines are counted and timed, as `Observer` in `answers/answer.py` says."""
