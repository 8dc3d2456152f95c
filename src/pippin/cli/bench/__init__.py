"""`pippin bench`: how fast a running server is. Begin with `sweep.py`; `scenarios.py` sends requests and times them."""
