"""How requests and engines are counted and timed. Begin with `ledger.py`."""
