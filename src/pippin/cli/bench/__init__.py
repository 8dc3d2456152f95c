"""`pippin bench`: measures a running server. Begin with `sweep.py`; `scenarios.py` sends requests and times them."""
